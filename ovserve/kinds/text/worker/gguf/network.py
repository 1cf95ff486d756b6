"""The network of a .gguf file as an OpenVINO model: a decoder with a KV cache in its state.

It has the form that the runtime's transformations know: attention as one node, rotary embeddings and the
repetition of keys in the patterns that they fuse. A weight is a parameter until `convert.py` makes it a
constant, so that no weight is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo
from openvino.utils.node_factory import NodeFactory

from ovserve.engine.model.gguf import Tensor
from ovserve.engine.model.gguf_forms import (
    PLAIN,
    ROUNDED,
    UNPACKED,
    WITH_OFFSETS,
    Form,
    form_of,
    table_form,
)
from ovserve.engine.model.gguf_model import (
    EXPERTS_OF_SCORE,
    SIGMOID,
    SOFTMAX,
    SOFTMAX_OF_USED,
    GGUFModel,
    Latent,
    Mixture,
)
from ovserve.kinds.text.worker.gguf.positions import Positions, dimensions, halves, integer, ints, times
from ovserve.kinds.text.worker.gguf.weights import (
    Constant,
    Matrix,
    Part,
    WeightsFile,
    transposed_part,
    vector,
)

NODES = NodeFactory("opset13")
ATTENTION = "ScaledDotProductAttention"  # the package's function for it takes no sinks
MERGE, UNPACK, ROUND, EXACT = "merge", "fp16", "round", "exact"
# Of the experts of gpt-oss: gate and up part are limited, and the gate's sigmoid is of more than the gate.
ACTIVATION_LIMIT, SIGMOID_SCALE = 7.0, 1.702
LEAST_SUM = 2.0**-14  # of the shares of a token's experts, which are divided by it
ACTIVATIONS_SCALE = "8.0"  # GPUs compute in f16, where activations are divided by it so that none overflows


class Network:
    """Builds one model. `constants` are those in the file of weights, by the names of their parameters."""

    def __init__(self, model: GGUFModel, weights: WeightsFile, steps: Collection[str] = ()) -> None:
        """`steps`: MERGE makes query, key and value of a layer one matrix product. UNPACK writes weights in
        f16. ROUND rounds zero points to u4. EXACT writes forms for our kernels."""
        self._model, self._weights, self._steps = model, weights, steps
        self._p, self._a = model.parameters, model.architecture
        self.constants: dict[str, Constant] = {}
        self._parameters: dict[str, Any] = {}
        self._sinks: list[Any] = []
        self._inputs = {
            name: _input(name, kind, rank)
            for name, kind, rank in (
                ("input_ids", np.int64, 2),
                ("attention_mask", np.int64, 2),
                ("position_ids", np.int64, 2),
                ("beam_idx", np.int32, 1),
            )
        }
        self._positions = Positions(self._p, self._a, self._inputs, self._vector)
        self._sums: tuple[Any, Any] | None = None  # the last input of a product, and the sums of its groups

    def build(self) -> ov.Model:
        """Write the weights, and return the model."""
        p = self._p
        embedding = self._matrix([Part(self._tensor("token_embd.weight"))], table=True)
        ids = ops.convert(self._inputs["input_ids"], "i32")
        hidden = ops.gather(self._unpacked(embedding), ids, ops.constant(0, np.int32))
        hidden = times(hidden, p.embedding_scale)
        for i in range(p.layers):
            hidden = self._layer(hidden, i)
        hidden = self._norm(hidden, "output_norm.weight")
        output = self._output(embedding)
        logits = self._biased(self._product(hidden, output), [("output", None)])
        logits = times(logits, 1 / p.logit_scale)
        if p.final_softcap:
            logits = times(ops.tanh(times(logits, 1 / p.final_softcap)), p.final_softcap)
        result = ops.result(logits)
        result.output(0).get_tensor().set_names({"logits"})
        model = ov.Model([result], self._sinks, [*self._inputs.values(), *self._parameters.values()], "model")
        model.set_rt_info(ACTIVATIONS_SCALE, ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"])
        return model

    # ---- weights

    def _tensor(self, name: str) -> Tensor:
        return self._model.gguf.tensors[name]

    def _form(self, name: str) -> Form:
        tensor = self._tensor(name)
        if len(tensor.dims) > 2:  # experts, which only our kernels compute
            return form_of(tensor, exact=EXACT in self._steps)
        if UNPACK in self._steps and tensor.type not in PLAIN:
            return UNPACKED._replace(rounded=self._rounds(tensor))
        return ROUNDED if self._rounds(tensor) else form_of(tensor, exact=EXACT in self._steps)

    def _rounds(self, tensor: Tensor) -> bool:
        """Return whether the zero points of a matrix are rounded; two are in a byte."""
        return ROUND in self._steps and tensor.type in WITH_OFFSETS and not tensor.dims[0] % 64

    def _matrix(self, parts: Sequence[Part], *, table: bool = False) -> Matrix:  # `table`: rows are looked up
        form = self._form(parts[0].tensor.name)
        if table and (form.offsets or form.block or form.high or form.values in ("u6", "f4e2m1")):
            form = table_form(parts[0].tensor, exact=self._model.tied)
        return self._weights.add(parts, form)

    def _output(self, embedding: Matrix) -> Matrix:
        return embedding if self._model.tied else self._matrix([Part(self._tensor("output.weight"))])

    def _product(self, hidden: Any, matrix: Matrix, experts: int = 0) -> Any:
        """Multiply by a matrix, or with `experts`, [experts, tokens, columns] by as many that are stacked.
        Offsets of groups are multiplied by the sums of theirs."""
        product = ops.matmul(hidden, self._unpacked(matrix, experts), False, True)
        if matrix.offsets is None or matrix.offset_scales is None:
            return product
        if self._sums is None or self._sums[0] is not hidden:
            grouped = ops.reshape(hidden, ints(0, 0, -1, matrix.form.group), True)
            self._sums = hidden, ops.reduce_sum(grouped, ints(-1), False)
        offsets = ops.convert(self._constant(matrix.offsets), "f32")
        of_rows = self._constant(matrix.offset_scales)
        if matrix.form.block:
            of_rows = ops.convert(of_rows, "f32")
        scaled = ops.multiply(offsets, of_rows)
        if matrix.form.block or experts:
            shape = [experts, -1] if experts else [matrix.rows]
            scaled = ops.reshape(scaled, ints(*shape, matrix.columns // matrix.form.group), False)
        return ops.add(product, ops.matmul(self._sums[1], scaled, False, True))

    def _unpacked(self, matrix: Matrix, experts: int = 0) -> Any:
        """Return a matrix, or those of `experts`, in f32, which the runtime unpacks where it uses it."""
        values = self._constant(matrix.values)
        rows = [experts, matrix.rows // experts] if experts else [matrix.rows]
        dimensions = [*rows, matrix.columns]
        if matrix.scales is None:
            plain = values if matrix.form.values == "f32" else ops.convert(values, "f32")
            return ops.reshape(plain, ints(*dimensions), False) if experts else plain
        shifted = ops.convert(values, "f16")
        if matrix.high is not None:
            sixteen = ops.convert(ops.constant(np.full((1, 1, 1), 16, np.uint8)), "f16")
            high = ops.multiply(ops.convert(self._constant(matrix.high), "f16"), sixteen)
            shifted = ops.add(shifted, high)
        if matrix.zeros is not None:
            zero = self._constant(matrix.zeros)
            shifted = ops.subtract(shifted, ops.convert(zero, "f16") if matrix.form.rounded else zero)
        elif matrix.form.zero:
            zero = ops.convert(ops.constant(np.full((1, 1, 1), matrix.form.zero, np.uint8)), "f16")
            shifted = ops.subtract(shifted, zero)
        scales = self._constant(matrix.scales)
        if matrix.form.scales == "f8e8m0":
            scales = ops.convert(scales, "f16")
        if matrix.factors is not None:
            scales = ops.multiply(ops.convert(self._constant(matrix.factors), "f16"), scales)
            groups = matrix.columns // matrix.form.group
            scales = ops.reshape(scales, ints(matrix.rows, groups, 1), False)
        whole = ops.reshape(ops.multiply(shifted, scales), ints(*dimensions), False)
        return ops.convert(whole, "f32")

    def _constant(self, constant: Constant) -> Any:
        name = f"weights.{constant.offset}"
        if name not in self._parameters:
            node = ops.parameter(list(constant.shape), getattr(ov.Type, constant.type))
            node.set_friendly_name(name)
            self._parameters[name] = node
            self.constants[name] = constant
        return self._parameters[name]

    def _vector(self, name: str) -> NDArray[np.float32]:
        return vector(self._tensor(name))

    def _linear(self, hidden: Any, name: str, rows: NDArray[np.int64] | None = None) -> Any:
        """Multiply by a matrix of the file, and add its bias."""
        product = self._product(hidden, self._matrix([Part(self._tensor(f"{name}.weight"), rows)]))
        return self._biased(product, [(name, rows)])

    def _biased(self, product: Any, parts: Sequence[tuple[str, NDArray[np.int64] | None]]) -> Any:
        """Add the biases of stacked matrices, if they have any."""
        if not any(f"{name}.bias" in self._model.gguf.tensors for name, _ in parts):
            return product
        stacked = []
        for name, rows in parts:
            if f"{name}.bias" in self._model.gguf.tensors:
                bias = self._vector(f"{name}.bias")
            else:
                bias = np.zeros(prod(self._tensor(f"{name}.weight").dims[1:]), np.float32)
            stacked.append(bias if rows is None else bias[rows])
        return ops.add(product, ops.constant(np.concatenate(stacked)[None, None]))

    def _norm(self, hidden: Any, name: str) -> Any:
        """Divide by the root mean square of the last dimension."""
        rank = len(dimensions(hidden))
        ones = [1] * (rank - 1)
        weight = self._vector(name).reshape(*ones, -1)
        square = ops.power(hidden, ops.constant(np.full([1] * rank, 2, np.float32)))
        mean = ops.reduce_mean(square, ops.constant(np.array([-1], np.int32)), True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.full([1] * rank, self._p.epsilon, np.float32))))
        inverse = ops.divide(ops.constant(np.ones([1] * rank, np.float32)), root)
        normal = ops.multiply(ops.multiply(inverse, hidden), ops.constant(weight))
        return self._biased(normal, [(name.removesuffix(".weight"), None)])

    # ---- layers

    def _layer(self, hidden: Any, i: int) -> Any:
        at, post = f"blk.{i}", self._a.post_norms
        attended = self._attention(self._norm(hidden, f"{at}.attn_norm.weight"), i)
        if post:
            attended = self._norm(attended, f"{at}.post_attention_norm.weight")
        hidden = ops.add(hidden, times(attended, self._p.residual_scale))
        normed = self._norm(hidden, f"{at}.{self._a.ffn_norm}.weight")
        mixture = self._p.mixture_of(i)
        fed = self._mixture(normed, at, mixture) if mixture else self._feed_forward(normed, at)
        if post:
            fed = self._norm(fed, f"{at}.post_ffw_norm.weight")
        return ops.add(hidden, times(fed, self._p.residual_scale))

    def _feed_forward(self, hidden: Any, at: str, kind: str = "") -> Any:
        """Return what a layer, or with `kind` an expert, makes of all tokens."""
        if self._a.fused:
            both, size = self._linear(hidden, f"{at}.ffn_up"), self._p.inner
            gate, up = ops.variadic_split(both, integer(-1), ints(size, size)).outputs()
        else:
            gate, up = (self._linear(hidden, f"{at}.ffn_{name}{kind}") for name in ("gate", "up"))
        active = ops.gelu(gate, "tanh") if self._a.gelu else ops.swish(gate)
        return self._linear(ops.multiply(active, up), f"{at}.ffn_down{kind}")

    def _mixture(self, hidden: Any, at: str, mixture: Mixture) -> Any:
        """Add what the experts of each token make of it, in the shares of a router, and the shared expert.

        In this form all experts compute all tokens, and the others' shares are 0. Kernels of ours compute
        what is needed alone (`kernels/matmul.py`).
        """
        count, width = mixture.experts, self._p.width
        tokens = ops.reshape(hidden, ints(-1, width), False)
        scores = self._routed(tokens, f"{at}.ffn_gate_inp")
        shares, ids = self._shares(scores, at, mixture)
        none = ops.broadcast(ops.constant(np.float32(0)), ops.shape_of(scores))
        of_all = ops.scatter_elements_update(none, ids, shares, integer(1))
        of_experts = ops.unsqueeze(ops.transpose(of_all, ints(1, 0)), integer(2))
        copies = ops.reshape(ops.tile(tokens, ints(count, 1)), ints(count, -1, width), False)

        def of_all_experts(inputs: Any, name: str) -> Any:
            name = f"{at}.ffn_{name}_exps"
            product = self._product(inputs, self._matrix([Part(self._tensor(f"{name}.weight"))]), count)
            if not self._a.expert_biases:
                return product
            return ops.add(product, ops.constant(self._vector(f"{name}.bias")[:, None]))

        gate, up = (of_all_experts(copies, name) for name in ("gate", "up"))
        if self._a.expert_biases:
            gate = ops.minimum(gate, ops.constant(np.float32(ACTIVATION_LIMIT)))
            up = ops.add(ops.clamp(up, -ACTIVATION_LIMIT, ACTIVATION_LIMIT), ops.constant(np.float32(1)))
            active = ops.swish(gate, ops.constant(np.float32(SIGMOID_SCALE)))
        else:
            active = ops.swish(gate)
        outputs = of_all_experts(ops.multiply(active, up), "down")
        mixed = ops.reduce_sum(ops.multiply(outputs, of_experts), ints(0), False)
        mixed = ops.reshape(mixed, ops.shape_of(hidden), False)
        if not mixture.shared:
            return mixed
        shared = self._feed_forward(hidden, at, "_shexp")
        if self._a.gated_share:
            shared = ops.multiply(shared, ops.sigmoid(self._routed(hidden, f"{at}.ffn_gate_inp_shexp")))
        return ops.add(mixed, shared)

    def _routed(self, tokens: Any, name: str) -> Any:
        """Multiply by the rows of a router, in f32."""
        rows = ops.constant(self._vector(f"{name}.weight").reshape(-1, self._p.width))
        product = ops.matmul(tokens, rows, False, True)
        if f"{name}.bias" not in self._model.gguf.tensors:
            return product
        return ops.add(product, ops.constant(self._vector(f"{name}.bias")))

    def _shares(self, scores: Any, at: str, mixture: Mixture) -> tuple[Any, Any]:
        """Return the shares and the numbers of the experts that each token uses, [tokens, used]."""
        likely = {SOFTMAX: lambda: ops.softmax(scores, 1), SIGMOID: lambda: ops.sigmoid(scores)}
        chances = likely.get(mixture.gating, lambda: scores)()
        ranks = chances
        if f"{at}.exp_probs_b.bias" in self._model.gguf.tensors:
            ranks = ops.add(chances, ops.constant(self._vector(f"{at}.exp_probs_b.bias")))
        if mixture.groups > 1:
            ranks = _of_best_groups(ranks, mixture)
        count = ops.constant(np.int32(mixture.per_token))
        shares, ids = ops.topk(ranks, count, 1, "max", "value", "i32").outputs()
        if ranks is not chances:
            shares = ops.gather_elements(chances, ids, 1)
        if mixture.gating == SOFTMAX_OF_USED:
            shares = ops.softmax(shares, 1)
        if mixture.is_normed:
            total = ops.reduce_sum(shares, ints(1), True)
            shares = ops.divide(shares, ops.maximum(total, ops.constant(np.float32(LEAST_SUM))))
        return times(shares, mixture.scale), ids

    def _attention(self, hidden: Any, i: int) -> Any:
        p, at = self._p, f"blk.{i}"
        step = p.windows
        window = p.window if step and i % step < step - 1 else 0
        if p.latent is not None:
            query, key, value = self._of_latent(hidden, at, p.latent)
        else:
            is_rotated = not self._a.rope_step or (i + 1) % self._a.rope_step > 0
            queries, keys, values = self._projections(hidden, at)
            query = self._placed(queries, p.heads, f"{at}.attn_q_norm.weight", window if is_rotated else None)
            key = self._placed(keys, p.kv_heads, f"{at}.attn_k_norm.weight", window if is_rotated else None)
            value = self._heads(values, p.kv_heads, p.value_size)
        key = self._repeated(self._cached(key, f"past_key_values.{i}.keypresent.{i}.key"))
        value = self._repeated(self._cached(value, f"past_key_values.{i}.valuepresent.{i}.value"))
        scale = p.attention_scale or p.head_size**-0.5 * self._a.sinks
        more = [ops.constant(np.float32(scale))] if scale else []
        if self._a.sinks:
            more.append(ops.constant(self._vector(f"{at}.attn_sinks.weight").reshape(1, -1, 1, 1)))
        inputs = [query, key, value, self._positions.mask(window), *more]
        attended = NODES.create(ATTENTION, [each.output(0) for each in inputs], {"causal": False})
        rows = ops.transpose(attended, ops.constant(np.array([0, 2, 1, 3], np.int32)))
        return self._linear(ops.reshape(rows, ints(0, 0, p.heads * p.value_size), True), f"{at}.attn_output")

    def _of_latent(self, hidden: Any, at: str, latent: Latent) -> tuple[Any, Any, Any]:
        """Return query, key and value. The rotated part is the first of a head here, in the file the last.
        Keys and values are of all heads, as attention kernels take no heads of 512 numbers, which the vector
        has that they are made of."""
        p, plain = self._p, self._p.head_size - self._p.rope.dims
        queries, of_queries = hidden, "attn_q"
        if latent.of_query:
            queries = self._norm(self._linear(hidden, f"{at}.attn_q_a"), f"{at}.attn_q_a_norm.weight")
            of_queries = "attn_q_b"
        queries = self._linear(queries, f"{at}.{of_queries}", self._positions.row_order(p.heads))
        query = self._positions.rotate(self._heads(queries, p.heads, p.head_size), 0)
        order = np.concatenate([np.arange(latent.size), latent.size + halves(p.rope.dims)])
        both = self._linear(hidden, f"{at}.attn_kv_a_mqa", order)
        vector, part = ops.variadic_split(both, integer(-1), ints(latent.size, p.rope.dims)).outputs()
        vector = self._norm(vector, f"{at}.attn_kv_a_norm.weight")
        if latent.is_split:
            part_of_keys, form = transposed_part(self._tensor(f"{at}.attn_k_b.weight"))
            keys = self._product(vector, self._weights.add([part_of_keys], form))
            values = self._linear(vector, f"{at}.attn_v_b")
        else:
            rows = np.arange(p.heads * (plain + p.value_size)).reshape(p.heads, -1)
            keys = self._linear(vector, f"{at}.attn_kv_b", rows[:, :plain].reshape(-1))
            values = self._linear(vector, f"{at}.attn_kv_b", rows[:, plain:].reshape(-1))
        part = self._positions.rotate(self._heads(part, 1, p.rope.dims), 0)
        of_all = ops.broadcast(part, ints(1, p.heads, 1, 1), broadcast_spec="BIDIRECTIONAL")
        key = ops.concat([of_all, self._heads(keys, p.heads, plain)], -1)
        return query, key, self._heads(values, p.heads, p.value_size)

    def _projections(self, hidden: Any, at: str) -> list[Any]:
        """Return query, key and value, in as few matrix products as their types allow."""
        p = self._p
        sizes = [p.heads * p.head_size, p.kv_heads * p.head_size, p.kv_heads * p.head_size]
        if self._a.fused:
            fused = self._linear(hidden, f"{at}.attn_qkv")
            return list(ops.variadic_split(fused, integer(-1), ints(*sizes)).outputs())
        names = [f"{at}.attn_{letter}" for letter in "qkv"]
        orders = [self._positions.row_order(p.heads), self._positions.row_order(p.kv_heads), None]
        forms = [self._form(f"{name}.weight") for name in names]
        if MERGE not in self._steps or len(set(forms)) == len(forms):
            return [self._linear(hidden, name, rows) for name, rows in zip(names, orders, strict=True)]
        outputs: dict[int, Any] = {}
        for form in dict.fromkeys(forms):
            members = [n for n in range(3) if forms[n] == form]
            parts = [Part(self._tensor(f"{names[n]}.weight"), orders[n]) for n in members]
            product = self._product(hidden, self._matrix(parts))
            product.set_friendly_name(f"{at}.{''.join('qkv'[n] for n in members)}_proj")
            product = self._biased(product, [(names[n], orders[n]) for n in members])
            split = ops.variadic_split(product, integer(-1), ints(*(sizes[n] for n in members)))
            outputs |= dict(zip(members, split.outputs(), strict=True))
        return [outputs[n] for n in range(3)]

    def _placed(self, rows: Any, heads: int, norm: str, window: int | None) -> Any:
        """Return heads of queries or keys, which `norm` is of if the file has it. `window`: of the layer;
        None: it has no rotary embedding."""
        norm = norm if norm in self._model.gguf.tensors else ""
        if norm and self._a.wide_norm:
            rows, norm = self._norm(rows, norm), ""
        placed = self._heads(rows, heads, self._p.head_size, "" if self._a.late_norm else norm)
        if window is not None:
            placed = self._positions.rotate(placed, window)
        return self._norm(placed, norm) if norm and self._a.late_norm else placed

    def _heads(self, rows: Any, heads: int, size: int, norm: str = "") -> Any:
        """Return [batch, heads, tokens, size]."""
        split = ops.reshape(rows, ints(0, 0, heads, size), True)
        if norm:
            split = self._norm(split, norm)
        return ops.transpose(split, ops.constant(np.array([0, 2, 1, 3], np.int32)))

    def _cached(self, new: Any, name: str) -> Any:
        """Return the cache and what is new; the state becomes both."""
        heads, size = (dimensions(new)[at].get_length() for at in (1, 3))
        shape = ops.concat([self._positions.batch, ints(heads), ints(0), ints(size)], 0)
        empty = ops.broadcast(ops.constant(np.float32(0)), shape)
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, heads, -1, size])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        past = ops.gather(ops.read_value(empty, variable), self._inputs["beam_idx"], integer(0))
        both = ops.concat([past, new], 2)
        self._sinks.append(ops.assign(both, variable))
        return both

    def _repeated(self, cached: Any) -> Any:
        """Repeat each head for the queries that share it."""
        p = self._p
        count = p.heads // p.kv_heads
        if count == 1:
            return cached
        sizes = ints(p.kv_heads), ints(count), ints(0), ints(p.head_size)
        shape = ops.concat([self._positions.batch, *sizes], 0)
        wide = ops.broadcast(ops.unsqueeze(cached, integer(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, ints(0, p.heads, -1, p.head_size), True)


def _of_best_groups(ranks: Any, mixture: Mixture) -> Any:
    """Return the ranks of experts, [tokens, experts], the lowest for those of groups that are not used."""
    by_group = ops.reshape(ranks, ints(-1, mixture.groups, mixture.experts // mixture.groups), False)
    best = ops.topk(by_group, ops.constant(np.int32(EXPERTS_OF_SCORE)), 2, "max", "value").output(0)
    scores = ops.reduce_sum(best, ints(2), False)
    count = ops.constant(np.int32(mixture.groups_per_token))
    ids = ops.topk(scores, count, 1, "max", "value", "i32").output(1)
    lowest = ops.broadcast(ops.constant(np.float32(-np.inf)), ops.shape_of(scores))
    zeros = ops.broadcast(ops.constant(np.float32(0)), ops.shape_of(ids))
    more = ops.scatter_elements_update(lowest, ids, zeros, integer(1))
    return ops.reshape(ops.add(by_group, ops.unsqueeze(more, integer(2))), ops.shape_of(ranks), False)


def _input(name: str, kind: Any, rank: int) -> Any:
    node = ops.parameter([-1] * rank, kind)
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node

"""An encoder on the OpenVINO runtime: its inputs by name, pooling and normalisation as part of its graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from ovserve.errors import InvalidArgument, LoadError, sentences_of
from ovserve.kinds.encoders.spec import FAST, TOKENIZER, TOKENIZER_IR, model_file
from ovserve.llm.token_bytes import byte_of_character

# Text to token ids without padding or truncation, by tokenizer.json or by a tokenizer in OpenVINO IR form.
#
# The library `tokenizers` is preferred: it releases the interpreter lock while it works. OpenVINO's own holds
# it, and is used for directories that have no tokenizer.json.


Row = NDArray[np.signedinteger[Any]]  # token ids of one input
BYTES = byte_of_character()
SHORT_TEXT_CHARACTERS = 1000  # characters
AT_ONCE = 64  # texts per call: the library keeps about 100 bytes per token until they are copied


class FastTokenizer:
    """tokenizer.json, read by the library `tokenizers`."""

    def __init__(self, file: Path) -> None:
        import tokenizers

        try:
            self._inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise LoadError(f"cannot be read: {error}", file=str(file)) from error
        self._inner.no_padding()
        self._inner.no_truncation()
        try:
            self._inner.encode_batch(
                ["a", "b"]
            )  # starts the library's threads; what failed is not tried again
        except BaseException:  # noqa: BLE001  a panic in Rust, because no more threads can be started
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.vocab_size = int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[str], special: bool = True) -> list[Row]:
        # The call for many hands them to a thread: 34 us of CPU time for 16 tokens, not 20. But that for one
        # holds Python's lock, 0.5 s for each MB of text, and with it every other model of the process.
        if len(texts) == 1 and len(texts[0]) <= SHORT_TEXT_CHARACTERS:
            return [np.array(self._inner.encode(texts[0], add_special_tokens=special).ids, np.int32)]
        rows: list[Row] = []
        for start in range(0, len(texts), AT_ONCE):
            some = list(texts[start : start + AT_ONCE])
            encoded = self._inner.encode_batch_fast(some, add_special_tokens=special)
            rows += [np.array(one.ids, np.int32) for one in encoded]
        return rows

    def pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return ids and types of two texts by the tokenizer's own template."""
        encoded = self._inner.encode(first, second)
        return list(encoded.ids), list(encoded.type_ids)

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
        return list(self._inner.decode_batch([list(row) for row in rows], skip_special_tokens=skip_special))

    def token(self, id_: int) -> str:
        return self._inner.id_to_token(id_) or ""

    def vocabulary_bytes(self, id_: int) -> bytes:
        token = self.token(id_)
        if BYTES.keys() >= {*token}:
            return bytes(BYTES[character] for character in token)
        return token.encode()

    def id_of(self, token: str) -> int | None:
        token_id: int | None = self._inner.token_to_id(token)
        return token_id


class IRTokenizer:
    """openvino_tokenizer.xml, as OVMS's model directories have it."""

    def __init__(self, directory: Path) -> None:
        import openvino_genai

        try:
            self._inner = openvino_genai.Tokenizer(str(directory))
        except RuntimeError as error:
            raise LoadError(f"cannot be read: {error}", file=str(directory / TOKENIZER_IR)) from error
        self.vocab_size = len(self._inner.get_vocab())

    def encode(self, texts: Sequence[str], special: bool = True) -> list[Row]:
        rows: list[Row] = []
        for text in texts:  # one by one: in a batch it pads, and a long text would widen all others
            ids = self._inner.encode(text, add_special_tokens=special).input_ids.data
            rows.append(np.array(ids[0], np.int32))
        return rows

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
        return [self._inner.decode(list(row), skip_special_tokens=skip_special) for row in rows]

    def token(self, id_: int) -> str:
        return str(self._inner.decode([id_], skip_special_tokens=False))

    def vocabulary_bytes(self, id_: int) -> bytes:
        return self._vocabulary.get(id_, b"")

    @cached_property
    def _vocabulary(self) -> dict[int, bytes]:
        return {id_: token for token, id_ in self._inner.get_vocab().items()}

    def id_of(self, token: str) -> int | None:
        token_id = self._inner.get_vocab().get(token)
        return None if token_id is None else int(token_id)


TextTokenizer = FastTokenizer | IRTokenizer


def open_tokenizer(directory: Path) -> TextTokenizer:
    """Raises LoadError."""
    if (directory / TOKENIZER).is_file():
        return FastTokenizer(directory / TOKENIZER)
    if (directory / TOKENIZER_IR).is_file():
        return IRTokenizer(directory)
    raise LoadError(f"has no {FAST}", file=str(directory))


class Framed:
    """A tokenizer and the special tokens that it puts around one text."""

    def __init__(self, inner: TextTokenizer) -> None:
        self.inner = inner
        bare, framed = (inner.encode(["a"], special)[0].tolist() for special in (False, True))
        at = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
        self.before: tuple[int, ...] = tuple(framed[:at])
        self.after: tuple[int, ...] = tuple(framed[at + len(bare) :])

    @property
    def special(self) -> int:
        return len(self.before) + len(self.after)

    def fit(self, row: Row, most: int) -> Row:
        """Return the ids cut to `most`; what the tokenizer puts behind a text stays at the end."""
        if len(row) <= most:
            return row
        last = len(self.after)
        if not last or last >= most or tuple(row[-last:].tolist()) != self.after:
            return row[:most]
        return np.concatenate((row[: most - last], row[-last:]))


def check_ids(rows: Sequence[Row], vocab_size: int) -> None:
    """Raises InvalidArgument: the model would read outside of its table."""
    for i, row in enumerate(rows):
        if row.size and (int(row.max()) >= vocab_size or int(row.min()) < 0):
            wrong = int(row[(row >= vocab_size) | (row < 0)][0])
            raise InvalidArgument(
                f"input[{i}]: token id {wrong} is not in the model's vocabulary of {vocab_size}",
                param=f"input[{i}]",
            )


Output = NDArray[np.float32]  # [rows, width]
KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "beam_idx")
REQUIRED = ("input_ids", "attention_mask")
POOLED = ("sentence_embedding", "pooled_output")
# What decides the number of streams; a graph that sets one of them gets one compiled model with exactly that.
OWN_STREAMS = ("NUM_STREAMS", "PERFORMANCE_HINT")
SMALLEST_NORM = 1e-12


def read(directory: Path) -> ov.Model:
    """Read the IR. Raises LoadError for a model with inputs that no encoder has."""
    file = model_file(directory)
    try:
        model = ov.Core().read_model(file)
    except RuntimeError as error:
        raise LoadError(f"cannot be read: {sentences_of(error)[-1]}", file=str(file)) from error
    names = [next(iter(sorted(i.get_names())), "") for i in model.inputs]
    known_names = [next((n for n in KNOWN_INPUTS if n in i.get_names()), None) for i in model.inputs]
    if None in known_names or not set(REQUIRED) <= set(known_names):
        raise LoadError(
            f"expected the inputs {' and '.join(REQUIRED)}, with {', '.join(KNOWN_INPUTS[2:])} if it has "
            f"them, got {', '.join(names)}",
            file=str(file),
        )
    return model


def pool(model: ov.Model, mode: str, normalize: bool) -> ov.Model:
    """Return the model with one output [rows, hidden]: the pooled token vectors, of unit length if asked.

    An output that is pooled already is taken as it is. Raises LoadError without any usable output.
    """
    ranks = [(o, len(o.get_partial_shape())) for o in model.outputs]
    ready = next((o for o, rank in ranks if rank == 2 and set(POOLED) & o.get_names()), None)
    tokens = next((o for o, rank in ranks if rank == 3), None)
    alone = ranks[0][0] if len(ranks) == 1 and ranks[0][1] == 2 else None
    if (x := ready or alone) is not None:
        result: Any = x.get_node().input_value(0)
    elif tokens is not None:
        result = _pooled(tokens.get_node().input_value(0), model.input("attention_mask"), mode)
    else:
        shapes = ", ".join(f"{o.get_any_name()} {o.get_partial_shape()}" for o in model.outputs)
        raise LoadError(f"expected an output with token vectors [rows, tokens, hidden], got {shapes}")
    if normalize:
        square = op.reduce_sum(op.multiply(result, result), op.constant(np.array([1])), True)
        norm = op.maximum(op.sqrt(square), op.constant(np.float32(SMALLEST_NORM)))
        result = op.divide(result, norm)
    output = op.result(result)
    parameters = [i.get_node() for i in model.inputs]
    return ov.Model([output], model.get_sinks(), parameters, "encoder")


def _pooled(x: Any, mask: Any, mode: str) -> Any:
    weights = op.convert(mask, ov.Type.f32)
    if mode == "MEAN":
        weighted = op.reduce_sum(
            op.multiply(x, op.unsqueeze(weights, op.constant(2))), op.constant(np.array([1]))
        )
        count = op.reduce_sum(weights, op.constant(np.array([1])), True)
        return op.divide(weighted, op.maximum(count, op.constant(np.float32(SMALLEST_NORM))))
    if mode == "CLS":
        return op.gather(x, op.constant(np.int64(0)), op.constant(np.int64(1)))
    return last_shown(x, mask)  # LAST


def last_shown(x: Any, mask: Any) -> Any:
    """Return the values of the last token that is shown, whichever side is padded."""
    length = op.gather(op.shape_of(mask), op.constant(1), op.constant(0))
    places = op.range(op.constant(np.int64(0)), length, op.constant(np.int64(1)), output_type=ov.Type.i64)
    last = op.reduce_max(op.multiply(places, op.convert(mask, ov.Type.i64)), op.constant(np.array([1])))
    return op.gather(x, last, op.constant(np.int64(1)), 1)


def logits(model: ov.Model, most: int | None = None) -> ov.Model:
    """Return the model with its logits alone, [rows, labels]. Raises LoadError for another output, and for
    more labels than `most`."""
    output = next((o for o in model.outputs if "logits" in o.get_names()), model.outputs[0])
    shape = output.get_partial_shape()
    labels = shape[1].get_length() if len(shape) == 2 and shape[1].is_static else 0
    if len(shape) != 2 or (most is not None and not 0 < labels <= most):
        columns = "labels" if most is None else " or ".join(map(str, range(1, most + 1)))
        hint = "; --task classification serves it" if labels else ""
        raise LoadError(
            f"expected an output logits [rows, {columns}], got {output.get_any_name()} {shape}{hint}"
        )
    result = op.result(output.get_node().input_value(0))
    return ov.Model([result], model.get_sinks(), [i.get_node() for i in model.inputs], "classifier")


class Compiled:
    """One compiled model and its inference requests, each for one thread at a time."""

    def __init__(self, model: ov.Model, device: str, properties: Mapping[str, Any], count: int = 0) -> None:
        """`count` of requests; 0: as many as the device works on at once. Raises LoadError."""
        try:
            compiled = ov.Core().compile_model(model, device, dict(properties))
            num_requests = count or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
            self.requests = [compiled.create_infer_request() for _ in range(num_requests)]
        except RuntimeError as error:
            raise LoadError(
                sentences_of(error)[-1], field="plugin_config" if properties else "target_device"
            ) from error
        self._types = {
            next(n for n in KNOWN_INPUTS if n in i.get_names()): i.get_element_type().to_dtype()
            for i in compiled.inputs
        }
        self._stateful = bool(model.get_sinks())

    def infer(self, request: int, rows: Sequence[Row], pad: int, types: Sequence[int] = ()) -> Output:
        """Return [rows, width]. `types`: where the second text of each row begins; those tokens are of
        type 1."""
        longest = max(len(row) for row in rows)
        shape = (len(rows), longest)
        ids = np.full(shape, pad, np.int64)
        mask = np.zeros(shape, np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._types:
            inputs["token_type_ids"] = token_types(mask, types)
        if "position_ids" in self._types:
            inputs["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        inferring = self.requests[request]
        if "beam_idx" in self._types:
            inputs["beam_idx"] = np.arange(len(rows), dtype=np.int32)
        if self._stateful:
            inferring.reset_state()
        tensors = {name: inputs[name].astype(type_, copy=False) for name, type_ in self._types.items()}
        inferring.infer(tensors, share_inputs=True)
        result: Output = inferring.get_output_tensor(0).data.astype(np.float32, copy=True)
        return result


def token_types(mask: NDArray[np.int64], types: Sequence[int]) -> NDArray[np.int64]:
    types_of_tokens = np.zeros_like(mask)
    for i, start in enumerate(types):
        types_of_tokens[i, start:] = mask[i, start:]
    return types_of_tokens


def weight_bytes(model: ov.Model) -> int:
    constants = (o for o in model.get_ops() if o.get_type_name() == "Constant")
    return sum(o.get_byte_size() for o in constants)


def matrix_bytes(model: ov.Model) -> int:
    """Return the bytes of constants without tables of embeddings, of which each inference reads little."""
    num_bytes = 0
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and not _is_table(node):
            num_bytes += node.get_byte_size()
    return num_bytes


def _is_table(node: Any) -> bool:
    """Return whether rows are gathered from this constant, or from what it is converted to."""
    users = [i.get_node() for i in node.output(0).get_target_inputs()]
    if any(user.get_type_name() == "Convert" for user in users):
        return any(_is_table(user) for user in users if user.get_type_name() == "Convert")
    return any(user.get_type_name() == "Gather" and user.input_value(0).get_node() == node for user in users)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1

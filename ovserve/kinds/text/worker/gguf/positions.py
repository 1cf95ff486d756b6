"""Positions of tokens in a network: rotary embeddings, and the mask of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log, pi
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ovserve.engine.model.gguf_model import Architecture, Parameters, Rope

LOWEST = np.float32(np.finfo(np.float16).min)  # of the mask: a token that is not seen


class Positions:
    """Parts that layers of a network share. `inputs`: of the network. `vector`: reads one of the file."""

    def __init__(
        self,
        parameters: Parameters,
        architecture: Architecture,
        inputs: Mapping[str, Any],
        vector: Callable[[str], NDArray[np.float32]],
    ) -> None:
        self._p, self._a, self._inputs, self._vector = parameters, architecture, inputs, vector
        self.batch = ops.gather(ops.shape_of(inputs["input_ids"]), ints(0), integer(0))  # [1]
        self._masks: dict[int, Any] = {}  # by window
        self._rotations: dict[tuple[float, float], tuple[Any, Any]] = {}

    def rotate(self, heads: Any, window: int) -> Any:
        rope = self._p.rope
        if window:
            rope = replace(rope, base=rope.window_base)
        if window and self._a.local_rope:
            rope = replace(rope, scaling="none", factor=1.0)
        cos, sin = self._rotation(rope)
        dims, size = self._p.rope.dims, dimensions(heads)[3].get_length()
        rest = None
        if dims < size:
            heads, rest = ops.variadic_split(heads, integer(-1), ints(dims, size - dims)).outputs()
        first = ops.slice(heads, ints(0), ints(dims // 2), ints(1), ints(3))
        second = ops.slice(heads, ints(dims // 2), ints(np.iinfo(np.int64).max), ints(1), ints(3))
        negative = ops.multiply(second, ops.constant(np.full((1, 1, 1, 1), -1, np.float32)))
        turned = ops.add(ops.multiply(heads, cos), ops.multiply(ops.concat([negative, first], -1), sin))
        return turned if rest is None else ops.concat([turned, rest], -1)

    def _rotation(self, rope: Rope) -> tuple[Any, Any]:
        """Return cosine and sine, [batch, 1, tokens, dims]."""
        key = (rope.base, rope.factor)
        if key in self._rotations:
            return self._rotations[key]
        factors = self._vector(rope.factors) if rope.factors else np.ones(rope.dims // 2, np.float32)
        frequencies, length = inverse_frequencies(rope, factors)
        constant = ops.constant(frequencies.astype(np.float32).reshape(1, -1, 1))
        wide = ops.broadcast(
            constant, ops.concat([self.batch, ints(1), ints(1)], 0), broadcast_spec="BIDIRECTIONAL"
        )
        positions = ops.convert(ops.unsqueeze(self._inputs["position_ids"], integer(1)), "f32")
        angles = ops.transpose(
            ops.matmul(wide, positions, False, False), ops.constant(np.array([0, 2, 1], np.int32))
        )
        both = ops.concat([angles, angles], -1)

        def unit(function: Callable[[Any], Any]) -> Any:
            return ops.unsqueeze(times(function(both), length), integer(1))

        self._rotations[key] = (unit(ops.cos), unit(ops.sin))
        return self._rotations[key]

    def mask(self, window: int) -> Any:
        """Return what is added to the scores: 0 for tokens that are seen. [batch, 1, tokens, all tokens]

        The runtime's paged attention finds the window in a mask of this form: how many tokens back a token
        sees is a negative constant that is added to its position.
        """
        if window in self._masks:
            return self._masks[window]
        mask, ids = self._inputs["attention_mask"], self._inputs["input_ids"]
        total = ops.squeeze(ops.gather(ops.shape_of(mask), ints(1), integer(0)), ints(0))
        new = ops.squeeze(ops.gather(ops.shape_of(ids), ints(1), integer(0)), ints(0))
        columns = ops.unsqueeze(ops.range(integer(0), total, integer(1), "i64"), ints(0, 1, 2))
        rows = ops.unsqueeze(ops.range(ops.subtract(total, new), total, integer(1), "i64"), ints(0, 1, 3))
        causal = ops.less_equal(columns, rows)
        filled = ops.unsqueeze(ops.not_equal(mask, integer(0)), ints(1, 2))
        zero, lowest = ops.constant(np.float32(0)), ops.constant(LOWEST)
        if not window:
            added = ops.select(ops.logical_and(causal, filled), zero, lowest)
        else:
            yes = ops.constant(np.ones((1, 1, 1, 1), np.bool_))
            near = ops.greater(columns, ops.add(rows, integer(-window)))
            both = ops.bitwise_and(yes, ops.bitwise_and(ops.bitwise_and(yes, near), causal))
            shape = ops.concat(
                [self.batch, ints(1), ops.unsqueeze(new, integer(0)), ops.unsqueeze(total, integer(0))], 0
            )
            wide = ops.broadcast(ops.bitwise_and(both, filled), shape)
            last = ints(np.iinfo(np.int64).max)
            added = ops.slice(ops.select(wide, zero, lowest), ints(0), last, ints(1), ints(3))
        self._masks[window] = added
        return added

    def row_order(self, heads: int) -> NDArray[np.int64] | None:
        """Return the order of rows in which rotated pairs are halves, as the runtime's pattern has them."""
        if not self._a.interleaved:
            return None
        size, dims = self._p.head_size, self._p.rope.dims
        head = np.concatenate([halves(dims), np.arange(dims, size)])
        if self._p.latent is not None:
            head = np.concatenate([size - dims + halves(dims), np.arange(size - dims)])
        rows: NDArray[np.int64] = np.add.outer(np.arange(heads) * size, head).reshape(-1)
        return rows


def inverse_frequencies(rope: Rope, factors: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """Return an angle per position for each pair, and the length of the rotated vectors."""
    exponents = np.arange(0, rope.dims, 2) / rope.dims
    plain = rope.base**-exponents / factors
    slower = plain / rope.factor
    if rope.scaling != "yarn":
        return slower, rope.attention_factor

    def pair(turns: float) -> float:
        """Return the pair that turns this often within the original context."""
        return rope.dims * log(rope.original_length / (turns * 2 * pi)) / (2 * log(rope.base))

    low = max(0.0, np.floor(pair(rope.beta_fast)))
    high = min(rope.dims - 1.0, np.ceil(pair(rope.beta_slow)))
    ramp = 1 - np.clip((np.arange(rope.dims // 2) - low) / max(0.001, high - low), 0, 1)
    return slower * (1 - ramp) + plain * ramp, rope.attention_factor * (1 + rope.stretch * log(rope.factor))


def dimensions(value: Any) -> ov.PartialShape:
    return value.partial_shape if isinstance(value, ov.Output) else value.get_output_partial_shape(0)


def halves(dims: int) -> NDArray[np.int64]:
    """Return the order in which pairs (0, 1), (2, 3) are halves."""
    return np.arange(dims).reshape(-1, 2).T.reshape(-1)


def times(node: Any, factor: float) -> Any:
    return node if factor == 1 else ops.multiply(node, ops.constant(np.float32(factor)))


def integer(value: int) -> Any:
    return ops.constant(np.int64(value))


def ints(*values: int) -> Any:
    return ops.constant(np.array(values, np.int64))

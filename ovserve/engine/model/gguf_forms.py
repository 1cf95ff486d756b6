"""Forms of a .gguf file's weights that OpenVINO computes with, and their sizes.

| in the file | here | bits per weight |
|---|---|---|
| F32, F16, BF16 | the same; experts in F16 and BF16 are in u8 as below | the same |
| Q4_0 | u4, a scale per 32 | 4.5 |
| Q4_1, Q4_K | u4, a scale per 32 in f16, an offset per 32 in int8 | 4.75 |
| Q8_0 | u8, a scale per 32 | 8.5 |
| all others | u8, a scale per 128 (64 or 32 for shorter rows) | 8.125 |

For our kernels (`exact`) these have the file's own numbers: a factor in int8 for each group, and a number in
f16 for 256 weights.

| in the file | here | bits per weight |
|---|---|---|
| Q4_K | u4, groups of 32, factors and offsets | 4.63, in the file 4.5 |
| Q5_K | u4 and u1, groups of 32, factors and offsets | 5.63, 5.5 |
| Q6_K, Q3_K | u6, groups of 16, factors | 6.56; 6.56, 3.44 |
| Q2_K | u6, groups of 16, factors and offsets | 7.13, 2.63 |
| Q5_0 | u4 and u1, a scale per 32 in f16 | 5.5, 5.5 |
| MXFP4 | f4e2m1, a scale per 32 in f8e8m0 | 4.25, 4.25 |

OpenVINO computes these too, but unpacks u6, u1 and f4e2m1 when it compiles.

The runtime computes with 4, 8 and 16 bits. The step of the u8 form is below a third of a Q6_K step, so that
the error is the file's own. A zero point in f16 turns the runtime's integer kernels off, and one that is
rounded to u4 doubles the error of Q4_K. So a weight is `scale * (value - 8) + offset`, and offsets are
multiplied by the sums of an input's groups. In the shape of Llama-3.2-3B that takes 0.8 of the CPU time for
one stream, and 0.6 for four (`benchmarks.weight_forms`, EPYC, 2026-11-27). A table that is looked up keeps
zero points. With OpenVINO's kernels SmolLM2 would take 26 ms instead of 18, so its zero points are rounded,
and its perplexity is 28.9 instead of 22.4. Kernels of ours take either in the same time. But exact weights
make SmolLM2 as likely to begin with "L'Étoile" as with "The" when it is asked for the capital of France.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from ovserve.engine.model.gguf import Tensor

PLAIN = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
PLAIN_KINDS = tuple(PLAIN)  # vectors and, with quantised ones, matrices
MATRIX_KINDS = (
    *PLAIN_KINDS, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "MXFP4",
)  # fmt: skip
BITS = {"u4": 4, "f4e2m1": 4, "u6": 6, "u8": 8, "i8": 8, "f8e8m0": 8, "f16": 16, "bf16": 16, "f32": 32}
MIDDLE_OF_U4, MIDDLE_OF_U8 = 8, 128


class Form(NamedTuple):
    """`group`: weights that share a scale; 0: plain numbers. `zero`: the zero point of all groups; None: each
    has its own. `rounded`: these are u4, not f16. `offsets`: each group has a number that is added. `block`:
    weights that share a number in f16, which the factors and offsets of their groups are multiplied by.
    `high`: values have a fifth bit, in u1."""

    values: str
    group: int = 0
    zero: int | None = None
    rounded: bool = False
    offsets: bool = False
    block: int = 0
    high: bool = False

    @property
    def scales(self) -> str:
        return {"i8": "f32", "f4e2m1": "f8e8m0"}.get(self.values, "f16")

    def bytes_for(self, rows: int, columns: int) -> dict[str, int]:
        """Return the size of each constant."""
        sizes = {"values": rows * columns * BITS[self.values] // 8}
        if self.high:
            sizes["high"] = rows * columns // 8
        if self.values == "i8":
            sizes["scales"] = rows * 4
        if self.group:
            sizes["scales"] = rows * columns // self.group * BITS[self.scales] // 8
            if self.zero is None:
                sizes["zeros"] = sizes["scales"] // 4 if self.rounded else sizes["scales"]
        if self.block:
            sizes |= {"factors": rows * columns // self.group, "scales": rows * columns // self.block * 2}
        if self.offsets:
            sizes["offsets"] = rows * columns // self.group
            sizes["offset_scales"] = sizes["scales"] if self.block else rows * 4
        return sizes


K_BLOCK_SIZE = 256  # weights of a K-quant's
EXACT = {
    "Q4_K": Form("u4", 32, 0, offsets=True, block=K_BLOCK_SIZE),
    "Q5_K": Form("u4", 32, 0, offsets=True, block=K_BLOCK_SIZE, high=True),
    "Q6_K": Form("u6", 16, 32, block=K_BLOCK_SIZE),
    "Q3_K": Form("u6", 16, 4, block=K_BLOCK_SIZE),
    "Q2_K": Form("u6", 16, 0, offsets=True, block=K_BLOCK_SIZE),
    "Q5_0": Form("u4", 32, 16, high=True),
    "MXFP4": Form("f4e2m1", 32, 0),
}


def form_of(tensor: Tensor, *, exact: bool = False) -> Form:
    if exact and tensor.type in EXACT:
        return EXACT[tensor.type]
    if (plain := PLAIN.get(tensor.type)) and (len(tensor.dims) < 3 or plain == "f32"):
        return Form(plain)
    if tensor.type == "Q4_0":
        return Form("u4", 32, MIDDLE_OF_U4)
    if tensor.type in WITH_OFFSETS:
        return Form("u4", 32, MIDDLE_OF_U4, offsets=True)
    if tensor.type == "Q8_0":
        return Form("u8", 32, MIDDLE_OF_U8)
    group = next(size for size in (128, 64, 32) if not tensor.dims[0] % size)
    return Form("u8", group, MIDDLE_OF_U8)


UNPACKED = Form("f16")
WITH_ZEROS = Form("u4", 32)  # of a table of rows, in place of offsets
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ROUNDED = Form("u4", 32, rounded=True)
WITH_OFFSETS = ("Q4_1", "Q4_K")


def table_form(tensor: Tensor, *, exact: bool = False) -> Form:
    """Return the form of a matrix whose rows are looked up. `exact`: the output layer is the same one."""
    if (form := form_of(tensor, exact=exact)).offsets:
        form = form_of(tensor)
    return WITH_ZEROS if form.offsets else form


def converted_size(
    tensors: Iterable[Tensor], *, unpacked: bool = False, in_memory: bool = False, exact: bool = False
) -> int:
    """Return the bytes that tensors take in a file here, or `in_memory`. Vectors are f32."""
    size, tensors = 0, list(tensors)
    is_tied = not any(tensor.name == OUTPUT for tensor in tensors)
    for tensor in tensors:
        form = UNPACKED if unpacked and len(tensor.dims) < 3 else form_of(tensor, exact=exact)
        if len(tensor.dims) == 1:
            size += 4 * tensor.dims[0]
            continue
        if tensor.name == EMBEDDING and not unpacked:
            form = table_form(tensor, exact=exact and is_tied)
        parts = form.bytes_for(prod(tensor.dims[1:]), tensor.dims[0])
        # The plugin computes with scales and zero points in f32.
        size += sum(
            part * (2 if in_memory and form.group and name != "values" else 1) for name, part in parts.items()
        )
    return size

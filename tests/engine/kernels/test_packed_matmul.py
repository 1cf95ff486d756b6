"""The kernels against numpy in f64, and in models against OpenVINO's own operations and nncf's forms of weights."""

from __future__ import annotations

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import openvino
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as ops

from ovserve.engine.host.cpu import MAX_ISA, processor
from ovserve.engine.host.memory import Memory
from ovserve.kinds.text.worker.kernels import library as kernel_library
from ovserve.kinds.text.worker.kernels.library import KernelError, Library, Weights, open_library
from ovserve.kinds.text.worker.kernels.matmul import FLOATS, FLOATS_ZERO, replace_products, widen

pytestmark = pytest.mark.skipif(
    not processor().has_kernels and "amx_bf16" not in processor().flags, reason="the processor has no AVX2"
)
EXACT = {"EXECUTION_MODE_HINT": "ACCURACY", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
ISAS = ("", "AVX2") + ("AVX2_VNNI",) * ("avx_vnni" in processor().flags)
MOST_ROUNDING = 0.012  # relative, of activations in int8 with a normal distribution


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library()


class Packed(NamedTuple):
    matrix: int
    weights: NDArray[np.float64]


def pack(
    library: Library,
    rows: int,
    columns: int,
    bits: int,
    group: int,
    chunk: int,
    kind: str,
    seed: int,
    isa: str = "",
) -> Packed:
    """Pack random numbers, for functions that use no more than `isa`. `kind`: the zero point is "constant" or there are "zeros" of groups; "offsets" are
    added; scales are of "rows", or "factors" of groups times numbers of spans, which "both" has of offsets too, or
    values are "floats" with exponents of groups."""
    random = np.random.default_rng(seed)
    groups = columns // group
    span = next(size for size in (256, 128, 64, columns) if columns % size == 0 and size % group == 0)
    values = random.integers(0, 2**bits, (rows, columns)).astype(np.uint8)
    zero = {"both": 0, "floats": FLOATS_ZERO}.get(kind, 1 << bits - 1)

    def halves(width: int) -> NDArray[np.float16]:
        return random.uniform(0.001, 0.01, (rows, columns // width)).astype(np.float16)

    def wholes() -> NDArray[np.int8]:
        return random.integers(-127, 128, (rows, groups)).astype(np.int8)

    two = kind in ("factors", "both")
    scales = None if kind in ("rows", "floats") else halves(span if two else group)
    factors = wholes() if two else None
    powers = random.integers(100, 140, (rows, groups)).astype(np.uint8)
    zeros = random.integers(0, 2**bits, (rows, groups)).astype(np.float16) if kind == "zeros" else None
    offsets = wholes() if kind in ("offsets", "both") else None
    offset_scales = None if offsets is None else halves(span if two else columns)
    row_scales = random.uniform(0.001, 0.01, rows).astype(np.float32) if scales is None else None
    unit = 2.0 ** random.integers(-20, 3) if kind == "offsets" else 1.0
    arena = library.arena(columns * (rows + 16) * 4 + 4096)
    kinds = {4: "f4e2m1" if kind == "floats" else "u4", 5: "u4", 6: "u6", 8: "u8"}
    element = getattr(openvino.Type, kinds[bits])
    raw = in_bytes(values, bits)  # the constant has no copy
    constant = openvino.op.Constant(openvino.Tensor(raw, openvino.Shape([rows, columns]), element))
    source = Weights(
        constant, rows, columns, bits, group, zero, np.packbits(values >> 4, axis=1) if bits == 5 else None, zeros,
        scales, powers.view(np.int8) if kind == "floats" else factors, row_scales, offsets, offset_scales, unit,
    )  # fmt: skip
    with patch.dict(os.environ, {MAX_ISA: isa}), patch.object(Weights, "chunk", chunk):
        matrix = library.pack(arena, source, is_file=False)
    library.release(arena)  # the matrix keeps it

    def wide(numbers: NDArray[Any] | None, none: float) -> NDArray[np.float64]:
        if numbers is None:
            return np.full((rows, columns), none)
        of_rows = numbers.astype(np.float64).reshape(rows, -1)
        return np.repeat(of_rows, columns // of_rows.shape[1], 1)

    if kind == "floats":
        factors, values, zero = np.exp2(powers - 127.0), np.array(FLOATS)[values], 0
    weights = (values - wide(zeros, zero)) * wide(scales, 1) * wide(factors, 1) * wide(row_scales, 1)
    return Packed(matrix, weights + wide(offsets, 0) * wide(offset_scales, 1) * unit)


def in_bytes(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack numbers as OpenVINO's constants have them; of six bits `test_six_bits_are_openvinos` judges that."""
    if bits in (4, 5):
        low = values & 15
        return low[:, 0::2] | low[:, 1::2] << 4
    if bits == 8:
        return values
    four = values.reshape(len(values), -1, 4)
    low = four & 15
    high = four >> 4
    return np.stack(
        [
            low[..., 1] | low[..., 0] << 4,
            low[..., 3] | low[..., 2] << 4,
            high[..., 3] | high[..., 2] << 2 | high[..., 1] << 4 | high[..., 0] << 6,
        ],
        axis=-1,
    ).reshape(len(values), -1)


def multiply(library: Library, matrix: int, activations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute in a model of one operation, as the engine does."""
    given = ops.parameter([-1, activations.shape[1]], np.float32)
    product = library.product(given.output(0), matrix)
    model = openvino.Core().compile_model(openvino.Model([ops.result(product)], [given]), "CPU")
    result: NDArray[np.float32] = model(activations)[0]
    return result


KINDS = {
    4: ("constant", "zeros", "offsets", "rows", "factors", "both", "floats"),
    5: ("constant", "offsets", "rows", "factors", "both"),
    6: ("factors", "both"),
    8: ("constant", "zeros", "rows", "factors"),
}


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int, int, str, int, int]:
    """Draw rows, columns, bits, group, chunk, kind, tokens and a seed."""
    bits = draw(st.sampled_from([4, 5, 6, 8]))
    kind = draw(st.sampled_from(KINDS[bits]))
    sizes = [(64, 32), (64, 64), (128, 32), (256, 64), (384, 128), (192, 192), (512, 256)]
    columns, group = draw(st.sampled_from([(96, 16), (512, 16), (768, 16)] if bits == 6 else sizes))
    group = 32 if kind == "floats" else group
    group = columns if kind == "rows" else group
    chunk = 64 if group % 64 == 0 else 32
    tokens = draw(
        st.integers(1, 21) | st.integers(32, 50)
    )  # from 32 on, 5 and 6 bits are unpacked for all of them
    return draw(st.integers(1, 70)), columns, bits, group, chunk, kind, tokens, draw(SEEDS)


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), isa=st.sampled_from(ISAS))
def test_products_of_whole_numbers_are_exact(library: Library, shape: Any, isa: str) -> None:
    """Activations that int8 holds are not rounded, so nothing but f32's own rounding is left."""
    rows, columns, bits, group, chunk, kind, tokens, seed = shape
    packed = pack(library, rows, columns, bits, group, chunk, kind, seed, isa)
    activations = np.random.default_rng(seed).integers(-127, 128, (tokens, columns)).astype(np.float32)
    activations[:, ::32] = 127  # so that every chunk's scale is 1
    result = multiply(library, packed.matrix, activations)
    library.release(packed.matrix)
    expected = activations.astype(np.float64) @ packed.weights.T
    size = np.abs(activations).astype(np.float64) @ np.abs(packed.weights.T)
    assert result.shape == (tokens, rows)
    assert (np.abs(result - expected) <= 2e-5 * size).all()


@settings(max_examples=40, deadline=None)
@given(shape=shapes(), scale=st.sampled_from([1e-20, 1.0, 1e20]))
def test_rounded_activations(library: Library, shape: Any, scale: float) -> None:
    rows, columns, bits, group, chunk, kind, tokens, seed = shape
    forms = [pack(library, rows, columns, bits, group, chunk, kind, seed, isa) for isa in ISAS]
    packed, random = forms[0], np.random.default_rng(seed)
    activations = (random.standard_normal((tokens, columns)) * scale).astype(np.float32)
    results = [multiply(library, form.matrix, activations) for form in forms]
    for form in forms:
        library.release(form.matrix)
    expected = activations.astype(np.float64) @ packed.weights.T
    size = np.linalg.norm(activations.astype(np.float64), axis=1)[:, None] * np.linalg.norm(
        packed.weights, axis=1
    )
    for result in results:
        assert (np.abs(result - expected) <= MOST_ROUNDING * 4 * size).all()
        assert np.allclose(result, results[0], rtol=1e-5, atol=float(1e-6 * size.max()))


@settings(max_examples=40, deadline=None)
@given(shape=shapes())
def test_rows_that_are_looked_up(library: Library, shape: Any) -> None:
    rows, columns, bits, group, chunk, kind, tokens, seed = shape
    packed = pack(library, rows, columns, bits, group, chunk, kind, seed)
    ids = np.random.default_rng(seed).integers(0, rows, (1, tokens))
    for type_ in (np.int32, np.int64):
        given = ops.parameter([-1, -1], type_)
        node = library.lookup(given.output(0), packed.matrix)
        model = openvino.Core().compile_model(openvino.Model([ops.result(node)], [given]), "CPU")
        result = model(ids.astype(type_))[0]
        assert result.shape == (1, tokens, columns)
        assert np.allclose(result, packed.weights[ids], rtol=1e-5, atol=1e-5)
    library.release(packed.matrix)


@pytest.mark.parametrize(
    ("bits", "kind"), [(bits, kind) for bits, kinds in KINDS.items() for kind in kinds if kind != "rows"]
)
@pytest.mark.parametrize("isa", ISAS)
def test_a_token_is_the_same_in_any_company(library: Library, bits: int, kind: str, isa: str) -> None:
    packed = pack(library, 48, 256, bits, 16 if bits == 6 else 32, 32, kind, 1, isa)
    activations = np.random.default_rng(2).standard_normal((45, 256)).astype(np.float32)
    together = multiply(library, packed.matrix, activations)
    for count in (1, 2, 3, 5, 8, 13, 31, 32):
        assert (multiply(library, packed.matrix, activations[:count]) == together[:count]).all()


@pytest.mark.parametrize(("bits", "kind"), [(bits, kinds[0]) for bits, kinds in KINDS.items()])
@pytest.mark.parametrize("isa", ISAS)
def test_experts_compute_what_they_would_compute_alone(
    library: Library, bits: int, kind: str, isa: str
) -> None:
    """Judged by the product with the rows of all experts."""
    experts, rows, columns, used = 6, 32, 256, 3
    packed = pack(library, experts * rows, columns, bits, 16 if bits == 6 else 32, 32, kind, 1, isa)
    random = np.random.default_rng(2)
    for tokens, type_ in ((0, np.int32), (1, np.int64), (7, np.int32), (150, np.int64)):
        ids = np.argsort(random.random((tokens, experts)), axis=1)[:, :used].astype(type_)
        ids[tokens // 2 :, 0] = 4  # many tokens of one
        for shared in (True, False):  # the tokens' activations, or those of each of their experts
            shape = (tokens, columns) if shared else (tokens, used, columns)
            activations = random.standard_normal(shape).astype(np.float32)
            inputs = (
                ops.parameter([-1] * len(shape[:-1]) + [columns], np.float32),
                ops.parameter([-1, used], type_),
            )
            node = library.experts(inputs[0].output(0), inputs[1].output(0), packed.matrix, experts)
            model = openvino.Core().compile_model(openvino.Model([ops.result(node)], inputs), "CPU")
            result = model((activations, ids))[0]
            assert result.shape == (tokens, used, rows)
            every = multiply(library, packed.matrix, activations.reshape(-1, columns))
            every = every.reshape(tokens, 1 if shared else used, experts, rows)
            for token, slot in np.ndindex(tokens, used):
                wanted = every[token, 0 if shared else slot, ids[token, slot]]
                assert (result[token, slot] == wanted).all()
    library.release(packed.matrix)


def test_zero_and_not_a_number(library: Library) -> None:
    packed = pack(library, 20, 128, 4, 32, 32, "offsets", 1)
    activations = np.zeros((3, 128), np.float32)
    activations[1, 5] = np.nan
    activations[2, 100] = 1.0
    result = multiply(library, packed.matrix, activations)
    assert (result[0] == 0).all()
    assert np.allclose(result[2], packed.weights[:, 100], rtol=1e-5)  # its neighbours do not reach it


def test_several_at_once(library: Library) -> None:
    packed = [pack(library, 200, 512, 4, 32, 32, "offsets", seed) for seed in range(4)]
    activations = np.random.default_rng(2).standard_normal((9, 512)).astype(np.float32)
    alone = [multiply(library, one.matrix, activations) for one in packed]

    def again(n: int) -> bool:
        return bool((multiply(library, packed[n % 4].matrix, activations) == alone[n % 4]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(again, range(40)))


# ---- in models


def linear_model(columns: int, *rows: int) -> openvino.Model:
    """Layers next to each other, with the activations as f32 and weights as they come from training."""
    random = np.random.default_rng(5)
    given = ops.parameter([-1, -1, columns], np.float32, name="activations")
    results = []
    for count in rows:
        weights = ops.constant(random.standard_normal((count, columns)).astype(np.float32))
        results.append(ops.result(ops.relu(ops.matmul(given, weights, False, True))))
    return openvino.Model(results, [given])


def kinds(model: openvino.Model) -> list[str]:
    return [node.get_type_name() for node in model.get_ops() if "MatMul" in node.get_type_name()]


def compress(model: openvino.Model, mode: str, **options: Any) -> openvino.Model:
    import nncf  # 1.5 s, which only the process that runs these tests spends

    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **options)


@pytest.mark.parametrize(
    ("mode", "group"),
    [
        ("INT8_SYM", -1),
        ("INT8_ASYM", -1),
        ("INT4_SYM", 128),
        ("INT4_ASYM", 128),
        ("INT4_ASYM", 64),
        ("INT4_SYM", 32),
        ("INT4_ASYM", -1),
    ],
)
def test_weights_that_nncf_compressed(library: Library, mode: str, group: int) -> None:
    options: dict[str, Any] = {} if "INT8" in mode else {"group_size": group, "all_layers": True}
    model = compress(linear_model(256, 96, 40), mode, **options)
    activations = np.random.default_rng(1).standard_normal((1, 6, 256)).astype(np.float32)
    exact = openvino.Core().compile_model(model, "CPU", EXACT)(activations)
    size = replace_products(model, library)
    assert kinds(model) == ["PackedMatMul"] * 2
    assert 0 < size < 256 * 136 * 1.5
    ours = openvino.Core().compile_model(model, "CPU")(activations)
    for n in range(2):
        assert np.linalg.norm(ours[n] - exact[n]) < MOST_ROUNDING * np.linalg.norm(exact[n])


def test_a_model_keeps_its_weights_after_the_library_forgot_them(library: Library) -> None:
    model = compress(linear_model(256, 96), "INT8_SYM")
    replace_products(model, library)
    compiled = openvino.Core().compile_model(model, "CPU")
    activations = np.random.default_rng(1).standard_normal((1, 3, 256)).astype(np.float32)
    first = compiled(activations)[0].copy()
    del model
    for _ in range(20):  # others take what was free
        other = compress(linear_model(256, 96), "INT8_ASYM")
        replace_products(other, library)
    assert (compiled(activations)[0] == first).all()


def test_memory_is_given_back(library: Library) -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")

    weights = ops.constant(np.ones((4096, 4096), np.int8))
    before = 0
    for n in range(6):
        given = ops.parameter([-1, 4096], np.float32)
        scaled = ops.multiply(ops.convert(weights, "f32"), ops.constant(np.ones((4096, 1), np.float32)))
        model = openvino.Model([ops.result(ops.matmul(given, scaled, False, True))], [given])
        assert replace_products(model, library) > 4096 * 4096
        result = openvino.Core().compile_model(model, "CPU")(np.ones((1, 4096), np.float32))[0]
        assert (result == 4096).all()
        del model, result
        if n == 2:
            before = mapped()
    assert mapped() - before < 3 * 4096 * 4096 / 2


@pytest.mark.parametrize("kind", ["f32", "f16", "groups of 16", "odd columns", "not transposed"])
def test_what_the_kernels_cannot_do_stays(library: Library, kind: str) -> None:
    columns = 80 if kind == "odd columns" else 256
    given = ops.parameter([-1, columns], np.float32)
    values = ops.constant(np.random.default_rng(1).integers(-100, 100, (32, columns)).astype(np.int8))
    scales: Any = ops.constant(np.full((32, 1), 0.01, np.float32))
    weights = ops.multiply(ops.convert(values, "f32"), scales)
    transposed = True
    if kind in ("f32", "f16"):
        weights = ops.convert(ops.constant(np.ones((32, columns), kind.replace("f", "float"))), "f32")
    elif kind == "groups of 16":
        grouped = ops.convert(ops.reshape(values, np.array([32, 16, 16]), False), "f32")
        scaled = ops.multiply(grouped, ops.constant(np.full((32, 16, 1), 0.01, np.float32)))
        weights = ops.reshape(scaled, np.array([32, 256]), False)
    elif kind == "not transposed":
        weights, transposed = ops.transpose(weights, np.array([1, 0])), False
    model = openvino.Model([ops.result(ops.matmul(given, weights, False, transposed))], [given])
    assert replace_products(model, library) == 0
    assert kinds(model) == ["MatMul"]


def test_grouped_weights_of_others_are_not_widened() -> None:
    """int8 with a scale per group, as a factor and a number look."""
    given = ops.parameter([-1, 256], np.float32)
    values = ops.constant(np.random.default_rng(1).integers(-100, 100, (32, 8, 32)).astype(np.int8))
    scales = ops.constant(np.full((32, 8, 1), 0.01, np.float16))
    scaled = ops.multiply(ops.convert(values, "f16"), scales)
    weights = ops.convert(ops.reshape(scaled, np.array([32, 256]), False), "f32")
    model = openvino.Model([ops.result(ops.matmul(given, weights, False, True))], [given])
    before = [node.get_type_name() for node in model.get_ordered_ops()]
    widen(model)
    assert [node.get_type_name() for node in model.get_ordered_ops()] == before


# ---- the library


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ovserve" / "kernels"


@pytest.fixture(scope="module")
def compiled(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `open_library` compiled in an empty cache. The linker gives what the real one made for the other tests:
    anew that takes 20 s of CPU time."""
    place = tmp_path_factory.mktemp("compiled")
    files = (directory / kernel_library._name() for directory in kernel_library.kernel_directories())
    made = next(file for file in files if file.exists())
    compiler = place / "c++"
    compiler.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do [ $# = 0 ] && exit; shift; done\ncp "{made}" "$2"\n'
    )
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place))
        patch.setenv("CXX", str(compiler))
        open_library()
    (made,) = (place / "ovserve" / "kernels").iterdir()
    return made


def test_compiled_once(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parents[1]))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    open_library()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == [compiled]


def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(KernelError, match="there is no C\\+\\+ compiler"):
        open_library()


def test_too_little_memory_for_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_library, "memory", lambda: Memory(50 << 20, "container"))
    with pytest.raises(KernelError, match="takes 512 MB, and the container has 50"):
        open_library()


def test_a_compiler_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho no room >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(KernelError, match="failed: no room"):
        open_library()
    assert not list(folder.iterdir())


def test_a_library_that_others_may_have_written_is_not_loaded(
    folder: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = copy_into_new(folder, compiled)
    made.chmod(0o777)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(KernelError):
        open_library()


def test_a_file_that_is_no_library(folder: Path, compiled: Path) -> None:
    made = copy_into_new(folder, compiled)
    made.write_bytes(b"cut short")
    with pytest.raises(KernelError, match="file too short"):
        open_library()


def test_without_a_place_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(KernelError, match="file/ovserve"):
        open_library()


def copy_into_new(folder: Path, compiled: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True)
    return Path(shutil.copy2(compiled, folder))

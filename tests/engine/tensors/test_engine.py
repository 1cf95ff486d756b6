"""The engine of plain models on real models: types, options, formats, errors, large tensors, repeated failures."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovserve.engine.client.calls import CallClient
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.tensors.spec import GivenTensor, InferArguments, InferResult, TensorFacts, TensorSpec
from tests.plain_models import floats, read_floats, texts


@asynccontextmanager
async def serving(path: Path, **options: Any) -> Any:
    settings = EngineSettings(restarts=RestartPolicy(first_pause=0.01))
    client = await CallClient.start(TensorSpec(str(path), **options), settings)
    assert isinstance(client.facts, TensorFacts)
    try:
        yield client
    finally:
        await client.stop()


async def infer(
    client: CallClient, *given: tuple[Sequence[int], bytes], form: Any = "raw"
) -> list[tuple[tuple[int, ...], bytes]]:
    inputs = tuple(GivenTensor(i, tuple(shape), form) for i, (shape, _) in enumerate(given))
    outputs = tuple(range(len(client.facts.outputs)))
    stream = await client.call("infer", InferArguments(inputs, outputs), [blob for _, blob in given])
    item = await stream.next()
    assert item is not None
    result = item.decode(InferResult)
    assert await stream.next() is None
    return list(zip(result.shapes, map(bytes, item.blobs), strict=True))


VALUES = {
    "boolean": np.array([True, False]), "f16": np.array([1.5, -2], "float16"), "bf16": np.array([16256, 49152], "uint16"),
    "string": None, **{k: np.array([-1.5, 2.0**90], k.replace("f", "float")) for k in ("f32", "f64")},
    # OpenVINO's CPU device computes 64-bit numbers in 32 bits.
    **{f"u{bits}": np.array([0, 2 ** min(bits, 31) - 1], f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"i{bits}": np.array([-(2 ** min(bits - 1, 31)), 5], f"int{bits}") for bits in (8, 16, 32, 64)},
}  # fmt: skip


async def test_every_type_comes_back_as_it_was_given(plain_models: Path) -> None:
    async with serving(plain_models / "types/1") as client:
        names = [i.name.removeprefix("in_") for i in client.facts.inputs]
        assert {i.datatype for i in client.facts.inputs} >= {"BOOL", "BF16", "BYTES", "FP64", "UINT64"}
        blobs = [texts(b"\xff\x00x", b"") if v is None else v.tobytes() for v in map(VALUES.get, names)]
        got = await infer(client, *(((2,), blob) for blob in blobs))
        assert dict(zip(names, got, strict=True)) == {n: ((2,), b) for n, b in zip(names, blobs, strict=True)}
        empty = await infer(client, *(((0,), b"") for _ in blobs))
        assert empty == [((0,), b"")] * len(blobs)


LARGE = {
    "i64": (np.array([0, 2**31]), "'in_i64': .* takes INT64 from -2147483648 to 2147483647, got 2147483648"),
    "u64": (np.array([2**63, 1], "uint64"), "'in_u64': .* UINT64 from 0 to 2147483647, got 9223372036854775808"),
    "f64": (np.array([np.nan, -1e300]), "'in_f64': .* FP64 from -3.4.*, got -1e[+]300"),
    "string": (None, "'in_string': element 1 ends with a NUL byte"),
}  # fmt: skip


DIVIDED = [("AUTO", "i64"), ("AUTO:CPU", "u64"), ("MULTI:CPU", "f64")]  # devices that hand all to the CPU


@pytest.mark.parametrize(("device", "wrong"), [*(("CPU", wrong) for wrong in LARGE), *DIVIDED])
async def test_what_the_device_would_replace_is_an_error(plain_models: Path, device: str, wrong: str) -> None:
    array, said = LARGE[wrong]
    async with serving(plain_models / "types/1", device=device) as client:
        names = [i.name.removeprefix("in_") for i in client.facts.inputs]
        blobs = [texts(b"a", b"b") if v is None else v.tobytes() for v in map(VALUES.get, names)]
        bad = texts(b"a", b"b\0") if array is None else array.tobytes()
        given = [bad if name == wrong.split()[0] else blob for name, blob in zip(names, blobs, strict=True)]
        with pytest.raises(InvalidArgument, match=said):
            await infer(client, *(((2,), blob) for blob in given))
        assert len(await infer(client, *(((2,), blob) for blob in blobs))) == len(blobs)


async def test_a_number_that_is_too_large_for_a_batch(plain_models: Path) -> None:
    async with serving(plain_models / "dummy_fp64/1", max_batch_size=8, max_queue_delay=0.1) as client:
        one, large = (((1, 10), np.full(10, number).tobytes()) for number in (1.0, 1e300))
        good, bad = await asyncio.gather(infer(client, one), infer(client, large), return_exceptions=True)
        assert np.frombuffer(good[0][1]).tolist() == [2.0] * 10  # type: ignore[index]
        assert isinstance(bad, InvalidArgument)


async def test_facts_and_values_of_large_tensors(plain_models: Path) -> None:
    async with serving(plain_models / "passthrough/1") as client:
        (info,) = client.facts.inputs
        assert (info.names, info.shape, info.datatype, info.bounds) == (
            ("input", "input:0"),
            (-1, -1),
            "UINT8",
            "[?,?]",
        )
        assert [o.name for o in client.facts.outputs] == ["copy:0"]
        large = os.urandom(3_000_000)
        found = await asyncio.gather(*(infer(client, ((1000, 3000), large)) for _ in range(8)))
        assert found == [[((1000, 3000), large)]] * 8


async def test_unnamed_outputs_and_state(plain_models: Path) -> None:
    async with serving(plain_models / "no_name_output/1") as client:
        assert [o.name for o in client.facts.outputs] == ["out_0", "out_1"]
        three = np.full((1, 10), 3, "int8").tobytes()
        assert [blob[0] for _, blob in await infer(client, ((1, 10), three), ((1, 10), three))] == [9, 6]
    async with serving(plain_models / "summator/1", nireq=1) as client:
        assert client.facts.stateful
        sums = [read_floats((await infer(client, ((1, 1), floats(4))))[0][1]) for _ in range(3)]
        assert sums == [[4.0]] * 3, "one client's state is not the next one's"


async def test_shapes_that_do_not_go_together_harm_no_one_else(plain_models: Path) -> None:
    def rows(n: int, m: int) -> tuple[tuple[int, int], bytes]:
        return (n, m), floats(*[1.0] * (n * m))

    async with serving(plain_models / "product/1", properties='{"NUM_STREAMS": 1}') as client:
        pid = client.pid
        for _ in range(3):
            assert (await infer(client, rows(2, 3), rows(3, 4)))[0] == ((2, 4), floats(*[3.0] * 8))
            with pytest.raises(InvalidArgument, match="(?i)incompatible"):
                await infer(client, rows(2, 3), rows(5, 4))
        good = asyncio.gather(*(infer(client, rows(2, 3), rows(3, 4)) for _ in range(20)))
        bad = asyncio.gather(
            *(infer(client, rows(2, 3), rows(5, 4)) for _ in range(20)), return_exceptions=True
        )
        assert await good == [[((2, 4), floats(*[3.0] * 8))]] * 20
        assert all(isinstance(error, InvalidArgument) for error in await bad)
        assert client.pid == pid


async def test_a_failed_inference_next_to_others_alters_none_of_them(plain_models: Path) -> None:
    """Without AVX-512, a stream that failed computes right shapes from other memory, with no error."""

    async def product(client: CallClient, m: int, k: int, n: int) -> None:
        found = await infer(client, ((m, k), floats(*[1.0] * m * k)), ((k, n), floats(*[1.0] * k * n)))
        assert found == [((m, n), floats(*[float(k)] * m * n))]

    async def mismatch(client: CallClient, k: int) -> None:
        with pytest.raises(InvalidArgument, match="(?i)incompatible"):
            await infer(client, ((2, k), floats(*[1.0] * 2 * k)), ((k + 1, 4), floats(*[1.0] * 4 * (k + 1))))

    for _ in range(5):  # only the first failures reach the device
        async with serving(plain_models / "product/1", properties='{"NUM_STREAMS": 2}', nireq=4) as client:
            await asyncio.gather(*(product(client, 2, 3, 4) for _ in range(8)))
            calls = [product(client, 2, 3, 4) if i % 4 else mismatch(client, i + 1) for i in range(40)]
            await asyncio.gather(*calls)


async def test_options_change_the_model(plain_models: Path) -> None:
    base = plain_models / "two/1"
    async with serving(base, batch_size="1:4", nireq=3) as client:
        assert [i.bounds for i in client.facts.inputs] == ["[1..4,10]"] * 2
        assert client.facts.max_calls == 3
    async with serving(base, shapes=(("x", "(2,10)"), ("y", "(2,10)"))) as client:
        assert [i.shape for i in client.facts.inputs] == [(2, 10)] * 2
        two = ((2, 10), floats(*[2.0] * 20))
        assert await infer(client, two, two) == [
            ((2, 10), floats(*[4.0] * 20)),
            ((2, 10), floats(*[0.0] * 20)),
        ]
    async with serving(plain_models / "increment_1x3x4x5/1", layouts=(("", "NHWC:NCHW"),)) as client:
        (info,) = client.facts.inputs
        assert (info.shape, info.layout) == ((1, 4, 5, 3), "NHWC")
        pixels = bytes(range(60))
        (shape, raw), *_ = await infer(client, ((1, 4, 5, 3), pixels), form="image")
        want = np.frombuffer(pixels, "uint8").reshape(1, 4, 5, 3).transpose(0, 3, 1, 2) + np.float32(1)
        assert (shape, raw) == ((1, 3, 4, 5), np.ascontiguousarray(want, "float32").tobytes())
    async with serving(plain_models / "increment_1x3x4x5/1", shapes=(("", "auto"),)) as client:
        (shape, raw), *_ = await infer(client, ((2, 3, 1, 1), floats(*range(6))))
        assert (shape, read_floats(raw)) == ((2, 3, 1, 1), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


async def test_other_formats_and_aliases(plain_models: Path, tmp_path: Path) -> None:
    one = ((1, 10), floats(*range(10)))
    for suffix in ("onnx", "pb", "tflite", "pdmodel"):
        version = tmp_path / suffix
        version.mkdir()
        shutil.copy(plain_models / f"formats/dummy.{suffix}", version)
        shutil.copy(plain_models / "formats/dummy.pdiparams", version)
        (version / "mapping_config.json").write_text('{"inputs": {"b": "numbers"}, "outputs": {"a": "more"}}')
        if suffix == "pb":
            (version / "mapping_config.json").write_text(
                '{"inputs": {"b:0": "numbers"}, "outputs": {"a:0": "more"}}'
            )
        async with serving(version) as client:
            facts = client.facts
            assert (facts.inputs[0].names, facts.outputs[0].names) == (("numbers",), ("more",))
            assert await infer(client, one) == [((1, 10), floats(*range(1, 11)))]
    both = tmp_path / "onnx"
    shutil.copytree(plain_models / "dummyUppercase/1", both, dirs_exist_ok=True)
    (both / "mapping_config.json").unlink()
    async with serving(both) as client:
        assert client.facts.inputs[0].name == "B", "IR comes before ONNX"


async def test_tokenizers_are_read_as_ovms_reads_them(model: Path) -> None:
    tokenizer, detokenizer = (model.parent / f"openvino_{name}.xml" for name in ("tokenizer", "detokenizer"))
    async with serving(tokenizer) as client:
        at = next(i for i, port in enumerate(client.facts.outputs) if port.name == "input_ids")
        shape, ids = (await infer(client, ((2,), texts(b"Hello world", "Zażółć 😀".encode()))))[at]
        rows = np.frombuffer(ids, np.int64).reshape(shape)
        assert rows[0][rows[0] > 2].tolist() == [19556, 905]
    async with serving(detokenizer) as client:
        assert await infer(client, (shape, ids)) == [((2,), texts(b"Hello world", "Zażółć 😀".encode()))]


async def test_empty_texts_stay_empty(plain_models: Path, model: Path) -> None:
    """Of texts that are all empty the library makes an array of a byte each, which stays unwritten."""
    async with serving(model.parent / "openvino_detokenizer.xml") as client:
        for rows in (1, 2, 1):
            special = np.zeros((rows, 1), np.int64).tobytes()
            assert await infer(client, ((rows, 1), special)) == [((rows,), texts(*[b""] * rows))]
            assert await infer(client, ((1, 1), np.array([72], np.int64).tobytes())) == [((1,), texts(b"X"))]
    async with serving(plain_models / "one_string/1") as client:
        for text in (b"q", b"", b"qqq", b"", b"\xff"):
            assert await infer(client, ((), texts(text))) == [((), texts(text))]


@pytest.mark.parametrize("streams", [1, 2])
async def test_no_texts_at_all_harm_no_one_else(model: Path, streams: int) -> None:
    """A tokenizer fails on them at the first inference of a stream, later ones return a row for no text."""
    properties = f'{{"NUM_STREAMS": {streams}}}'
    async with serving(model.parent / "openvino_tokenizer.xml", properties=properties) as client:
        one = ((1,), texts(b"Hello"))
        wanted, before = await infer(client, one), client.pid
        for _ in range(3):
            with pytest.raises(InvalidArgument, match="inputs: the model rejects them"):
                await infer(client, ((0,), b""))
            assert await infer(client, one) == wanted
        assert client.pid == before


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"shapes": (("z", "(1,10)"),)}, "shape", "'z' is not a tensor of the model; known: 'x', 'y'"),
        ({"shapes": (("", "(1,10)"),)}, "shape", "2 inputs; give each by name"),
        ({"shapes": (("x", "(1,10,3)"),)}, "shape", "the model cannot be reshaped"),
        ({"shapes": (("x", "(1,a)"),)}, "shape", "got 'a'"),
        ({"batch_size": "3:1"}, "batch_size", "got '3:1'"),
        ({"layouts": (("x", "N?WC!"),)}, "layout", "got 'N?WC!'"),
        ({"properties": '{"NUM_STREAM": 1}'}, "plugin_config", "NUM_STREAM"),
        ({"device": "NOPE"}, "target_device", "NOPE"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(plain_models: Path, options: dict[str, Any], field: str, said: str) -> None:
    from ovserve.kinds.tensors.worker.engine import TensorEngine

    with pytest.raises(LoadError) as caught:
        TensorEngine(TensorSpec(str(plain_models / "two/1"), **options))
    assert caught.value.field == field
    assert said in caught.value.reason


def test_wrong_files_are_named(plain_models: Path, tmp_path: Path) -> None:
    from ovserve.kinds.tensors.worker.engine import TensorEngine

    with pytest.raises(LoadError, match="no model file"):
        TensorEngine(TensorSpec(str(tmp_path)))
    (tmp_path / "model.xml").write_text("<net")
    with pytest.raises(LoadError, match="cannot be read"):
        TensorEngine(TensorSpec(str(tmp_path)))
    shutil.copytree(plain_models / "dummy/1", tmp_path, dirs_exist_ok=True)
    (tmp_path / "mapping_config.json").write_text('{"inputs": {"c": "d"}}')
    with pytest.raises(LoadError, match="'c' is not a tensor of the model; known: b"):
        TensorEngine(TensorSpec(str(tmp_path)))
    (tmp_path / "mapping_config.json").write_text('{"input": {}}')
    with pytest.raises(LoadError, match="mapping_config"):
        TensorEngine(TensorSpec(str(tmp_path)))


async def test_a_killed_engine_comes_back_and_calls_are_repeated(plain_models: Path) -> None:
    async with serving(plain_models / "dummy/1") as client:
        one = ((1, 10), floats(*range(10)))
        before = client.pid
        assert await infer(client, one) == [((1, 10), floats(*range(1, 11)))]
        os.kill(before, signal.SIGKILL)
        assert await infer(client, one) == [((1, 10), floats(*range(1, 11)))]
        assert client.pid not in (0, before)


async def test_waiting_calls_are_joined_and_each_gets_its_own_rows(plain_models: Path) -> None:
    options = {"max_batch_size": 8, "max_queue_delay": 0.2, "nireq": 1}
    async with serving(plain_models / "dummy/1", **options) as client:
        assert client.facts.max_calls == 8
        assert client.facts.inputs[0].shape == (-1, 10), "the first axis became dynamic"
        calls = [infer(client, ((n, 10), floats(*range(100 * n, 100 * n + 10 * n)))) for n in (1, 2, 3, 1)]
        results = await asyncio.gather(*calls)
        for n, [(shape, blob)] in zip((1, 2, 3, 1), results, strict=True):
            assert shape == (n, 10)
            assert read_floats(blob) == [v + 1 for v in range(100 * n, 100 * n + 10 * n)]
        asked = InferArguments((GivenTensor(0, (1, 10)),), (0,))
        streams = [await client.call("infer", asked, [floats(*range(10))]) for _ in range(4)]
        streams[1].cancel()
        items = [await stream.next() for i, stream in enumerate(streams) if i != 1]
        assert all(item is not None and read_floats(item.blobs[0])[9] == 10 for item in items)


async def test_a_batch_that_fails_is_run_call_by_call(plain_models: Path) -> None:
    """A product of matrices works for each call and not for two of them joined."""
    async with serving(plain_models / "product/1", max_batch_size=8, max_queue_delay=0.2) as client:
        left, right = ((2, 2), floats(1, 2, 3, 4)), ((2, 2), floats(1, 0, 0, 2))
        found = await asyncio.gather(infer(client, left, right), infer(client, right, left))
        assert [read_floats(one[0][1]) for one in found] == [[1, 4, 3, 8], [1, 2, 6, 8]]
        wrong = infer(client, left, ((2, 3), floats(*range(6)))), infer(client, ((2, 1), floats(1, 2)), right)
        fine, refused = await asyncio.gather(*wrong, return_exceptions=True)
        assert isinstance(refused, InvalidArgument)
        assert not isinstance(fine, BaseException)


async def test_a_model_that_cannot_be_batched_is_named(plain_models: Path) -> None:
    with pytest.raises(LoadError, match="has elements of (BYTES|BF16)"):
        async with serving(plain_models / "types/1", max_batch_size=8):
            pass
    with pytest.raises(LoadError, match="has no dynamic first dimension"):
        async with serving(plain_models / "dummy/1", max_batch_size=8, batch_size="4"):
            pass

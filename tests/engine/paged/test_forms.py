"""The forms of a model for steps of few tokens, on the default model, and on a tiny one where its size plays no part.
The processor is told, so that those of AMX are tried everywhere."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import gguf
import openvino
import pytest
from openvino import opset13 as ops

from ovserve.engine.host.cpu import Processor, processor
from ovserve.engine.host.memory import Memory
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.kinds.text.worker.paged import engine as paged_engine
from ovserve.kinds.text.worker.paged import model as paged_model
from ovserve.kinds.text.worker.paged.model import (
    ACTIVATION_GROUP,
    FEW_TOKENS,
    FILE,
    MEASURED_TOKENS,
    PagedModel,
    takes_wide_groups,
)
from ovserve.kinds.text.worker.paged.runner import Runner
from ovserve.pull.run import Wanted, pull
from tests.engine import tiny
from tests.engine.real import CHAT, STORY, add, generate, run
from tests.pull import tiny_gguf

pytestmark = pytest.mark.long

CAPITAL = "The capital of France is"  # five tokens
TILES = Processor(flags=frozenset({"amx_bf16"}))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory."""
    return tiny.write_openvino(tmp_path_factory.mktemp("tiny") / "model", tiny.table())


def forms(directory: str | Path, properties: dict[str, str], *, tiles: bool) -> tuple[bool, bool]:
    model = PagedModel(Path(directory, "openvino_model.xml"), "CPU", properties, tiles)
    model.read_forms()
    model.compile()
    model.allocate(4)
    model.start_forms()
    model.wait()
    return model.few is not None, 1 in model.decode_forms


def test_steps_of_few_tokens_compute_in_f32_with_tiles(
    short_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert forms(short_model, {"KV_CACHE_PRECISION": "u8"}, tiles=True) == (True, True)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("properties", "tiles"),
    [
        ({"KV_CACHE_PRECISION": "u8"}, False),
        ({"INFERENCE_PRECISION_HINT": "f32"}, True),
        ({"EXECUTION_MODE_HINT": "ACCURACY"}, True),
    ],
)
def test_no_second_precision(tiny_model: str, properties: dict[str, str], tiles: bool) -> None:
    assert forms(tiny_model, {"KV_CACHE_PRECISION": "u8"}, tiles=True)[0]
    assert not forms(tiny_model, properties, tiles=tiles)[0]


def test_the_form_follows_the_number_of_tokens(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_engine, "processor", lambda: TILES)
    engine = PagedEngine(PagedTextSpec(model_path, properties='{"KV_CACHE_PRECISION": "u8"}'))
    engine.wait_for_forms()
    model, ran = engine._model, collections.Counter[Runner]()
    run_step = Runner.run

    def counted(self: Runner, longest: int) -> object:
        ran[self] += 1
        return run_step(self, longest)

    monkeypatch.setattr(Runner, "run", counted)
    assert model.few is not None
    assert "Paris" in generate(engine, CAPITAL, max_tokens=7, num_assistant_tokens=0).text
    assert set(ran) == {model.few, model.decode_forms[1]}  # the short prompt, then one token at a time
    for count, runner in (FEW_TOKENS, model.few), (FEW_TOKENS + 1, model.runner):
        ran.clear()
        for id_ in range(count):
            add(engine, id_, CAPITAL, max_tokens=7, ignore_eos=True, num_assistant_tokens=0)
        texts = {result.text for result in run(engine).values()}
        assert all("Paris" in text for text in texts)
        assert ran[runner] >= 6


def test_without_a_form_the_one_for_many_goes_on(
    model_path: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no memory for it")

    monkeypatch.setattr(PagedModel, "_form", failing)
    monkeypatch.setattr(paged_model, "find_library", lambda: None)
    engine = PagedEngine(PagedTextSpec(model_path))
    engine.wait_for_forms()
    assert "Paris" in generate(engine, CAPITAL, max_tokens=7).text
    assert "steps of few tokens use the form for many: no memory for it" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "properties", "cache_bytes", "available", "wide"),
    [
        ({"avx512_bf16"}, {}, 0, 64 << 30, True),
        ({"avx512_bf16"}, {}, 0, 1 << 20, False),
        ({"avx512_bf16"}, {}, 64 << 30, 1 << 20, True),
        ({"avx512_bf16"}, {}, 1 << 20, 64 << 30, False),
        ({"avx512_bf16"}, {"KV_CACHE_PRECISION": "u8"}, 0, 64 << 30, False),
        ({"avx512_bf16"}, {"INFERENCE_PRECISION_HINT": "f32"}, 0, 64 << 30, False),
        ({"avx512_bf16", "amx_bf16"}, {}, 0, 64 << 30, False),
        ({"avx2"}, {}, 0, 64 << 30, False),
    ],
)
def test_a_cache_in_16_bits_where_it_is_faster_and_fits(
    tiny_model: str,
    monkeypatch: pytest.MonkeyPatch,
    flags: set[str],
    properties: dict[str, str],
    cache_bytes: int,
    available: int,
    wide: bool,
) -> None:
    monkeypatch.setattr(paged_model, "processor", lambda: Processor(flags=frozenset(flags)))
    monkeypatch.setattr(paged_model, "memory", lambda: Memory(available))
    model = PagedModel(Path(tiny_model, FILE), "CPU", properties, "amx_bf16" in flags, cache_bytes)
    assert ("bf16" in model.layout()) == wide


@pytest.mark.skipif(not processor().has_kernels, reason="OpenVINO's kernels compute here")
def test_kernels_and_a_cache_of_compiled_models(
    tmp_path: Path, short_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        model = PagedModel(short_model / FILE, "CPU", {"CACHE_DIR": str(tmp_path)})
        model.compile()
        assert model.packed_bytes
        assert "CACHE_DIR has no effect" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_forms_that_could_not_be_read_early_are_read_again(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = paged_model.read_paged, []

    def failing_second(core: openvino.Core, file: Path) -> openvino.Model:
        calls.append(file)
        if len(calls) == 2:
            raise RuntimeError("no memory for it")
        return read(core, file)

    monkeypatch.setattr(paged_model, "read_paged", failing_second)
    assert forms(tiny_model, {"KV_CACHE_PRECISION": "u8"}, tiles=False) == (False, True)
    assert len(calls) == 3


def test_no_request_gets_the_block_that_a_first_token_is_computed_in(tiny_model: str) -> None:
    engine = PagedEngine(PagedTextSpec(tiny_model, num_kv_blocks=4))
    engine.wait_for_forms()
    pool, model = engine._scheduler.pool, engine._model
    assert pool.touched == 0
    assert [pool.allocate() for _ in range(5)] == [0, 1, 2, 3, None]
    assert {cache.shape[0] for cache in model._cache.values()} == {5}


def test_no_copy_of_the_weights_where_memory_is_short(
    short_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paged_model, "memory", lambda: Memory(40 << 20, "container"))
    assert forms(short_model, {"KV_CACHE_PRECISION": "u8"}, tiles=True) == (False, False)
    said = capfd.readouterr().err  # which form is laid depends on the processor, so the size does
    found = re.search(r"another copy of the weights takes (\d+) MB, of 40 MB of memory left", said)
    assert found is not None, said
    assert 20 < int(found[1]) < 80  # 71 with the output layer in int8


def test_a_large_model_is_measured_at_load(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = PagedTextSpec(tiny_model)
    assert PagedEngine(spec)._costs._curve == {}
    monkeypatch.setattr(paged_model, "SMALL_WEIGHTS_BYTES", 0)
    monkeypatch.setattr(paged_engine, "processor", Processor)
    engine = PagedEngine(spec)
    assert tuple(engine._costs._curve) == MEASURED_TOKENS
    assert generate(engine, "a", max_tokens=8).text == "bcdefghi"


@pytest.mark.skipif(not processor().has_kernels, reason="attention of ours computes with our kernels")
@pytest.mark.parametrize("requests", [1, 3])
def test_decodes_in_a_form_of_their_own_are_rounded_the_same_way(
    short_model: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(paged_model, "DECODES_BEFORE_FORM", 4)
    engine = PagedEngine(PagedTextSpec(str(short_model)))
    model, ran = engine._model, collections.Counter[Runner]()
    run_step = Runner.run

    def counted(self: Runner, longest: int) -> object:
        ran[self] += 1
        return run_step(self, longest)

    monkeypatch.setattr(Runner, "run", counted)

    def answers(drafts: int) -> list[object]:
        for id_ in range(requests):
            prompt = FACTS if id_ else STORY
            add(
                engine,
                id_,
                prompt,
                max_tokens=40,
                ignore_eos=True,
                logprobs=True,
                num_assistant_tokens=drafts,
            )
        done = run(engine)
        return [(done[id_].text, *done[id_].logprobs) for id_ in range(requests)]

    expected = answers(0)
    engine.wait_for_forms()
    form = model.decode_forms[requests]
    ran.clear()
    assert answers(0) == expected
    assert ran[form] >= 32
    assert answers(3) == expected  # steps of other counts get forms meanwhile
    engine.wait_for_forms()
    assert answers(3) == expected
    assert len(model.decode_forms) <= paged_model.MOST_DECODE_FORMS


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_without_a_form_for_decodes_the_one_for_all_goes_on(
    short_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: type[Exception],
) -> None:
    def failing(*_: object) -> None:
        raise kind("no memory for it")

    monkeypatch.setattr(paged_model, "DECODES_BEFORE_FORM", 4)
    monkeypatch.setattr(PagedModel, "_form", failing)
    engine = PagedEngine(PagedTextSpec(str(short_model)))
    has_template = engine._model._template is not None
    text = generate(engine, CAPITAL, max_tokens=12, num_assistant_tokens=0).text
    engine.wait_for_forms()
    said = "steps of decodes use the form for all: no memory for it"
    assert (said in capfd.readouterr().err) == has_template
    assert generate(engine, CAPITAL, max_tokens=12, num_assistant_tokens=0).text == text


FACTS = CHAT.format(" ".join(f"{i} times {i} is {i * i}." for i in range(42)) + " List these squares.")


def test_nothing_that_ran_before_changes_a_deterministic_answer(short_model: Path) -> None:
    directory = str(short_model)
    uncached = PagedEngine(PagedTextSpec(directory, deterministic=True))
    engine = PagedEngine(PagedTextSpec(directory, deterministic=True, enable_prefix_caching=True))

    def scores(engine: PagedEngine, prompt: str | tuple[int, ...]) -> tuple[object, ...]:
        done = generate(engine, prompt, max_tokens=16, logprobs=True)
        assert not done.drafted
        return done.text, *done.logprobs

    expected = scores(uncached, FACTS)
    # Beside another stream, parts of the prompt share steps with it.
    add(engine, 0, FACTS, max_tokens=8)
    add(engine, 1, STORY, max_tokens=8)
    run(engine)
    repeats = [scores(engine, FACTS) for _ in range(2)]
    accepted = add(engine, 0, FACTS)
    assert accepted.prompt_tokens > accepted.cached_tokens == 2 * 256
    run(engine)
    add(engine, 0, FACTS + STORY, max_tokens=8)
    add(engine, 1, FACTS.replace("41 times", "40 times"), max_tokens=8)
    run(engine)
    repeats += [scores(engine, FACTS), scores(engine, FACTS), scores(uncached, FACTS)]
    assert repeats == [expected] * 5
    # What an answer left in the cache was computed one token at a time.
    add(
        engine,
        0,
        tuple(engine.text.tokenize((STORY + FACTS,), False)[0][:250]),
        max_tokens=80,
        ignore_eos=True,
    )
    item = engine._scheduler.running[0]
    run(engine)
    following = (*item.ids, *item.ids[:20])
    assert scores(engine, following) == scores(uncached, following)
    with pytest.raises(InvalidArgument, match="num_assistant_tokens: 3 is not possible"):
        add(engine, 0, FACTS, num_assistant_tokens=3)
    assert not engine.busy


def weights(kind: str, *shapes: tuple[int, ...]) -> openvino.Model:
    """A model with constants of a type."""
    element = getattr(openvino.Type, kind)
    outputs = [
        ops.result(ops.convert(ops.constant(openvino.Tensor(element, openvino.Shape(shape))), "f32"))
        for shape in shapes
    ]
    return openvino.Model(outputs, [], "weights")


@pytest.mark.parametrize(
    ("kind", "shapes", "wide"),
    [
        ("u4", [(8, 2, 128), (8, 2, 1)], True),
        ("i4", [(8, 4, 64)], True),
        ("u4", [(8, 2, 128), (8, 8, 32)], False),
        ("u4", [(4, 8, 2, 128)], True),  # of experts
        ("i8", [(16, 576)], True),
        ("i8", [(16, 96)], False),
        ("u8", [(16, 4, 32)], False),
        ("f16", [(16, 128)], False),
    ],
)
def test_activations_share_a_scale_where_weights_do(
    kind: str, shapes: list[tuple[int, ...]], *, wide: bool
) -> None:
    assert takes_wide_groups(weights(kind, *shapes)) is wide


@pytest.fixture(scope="module")
def int8_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model's directory."""
    place = tmp_path_factory.mktemp("int8")
    source = tiny_gguf.write(place / "floats.gguf", gguf.GGMLQuantizationType.F16)
    return pull(Wanted(str(source), place / "r", weight_format="int8"), print)


@pytest.mark.parametrize(
    ("properties", "tiles", "group"),
    [({}, False, 64), ({}, True, None), ({"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}, False, 0)],
)
def test_the_group_of_activations(
    int8_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    *,
    tiles: bool,
    group: int | None,
) -> None:
    """In int8, without kernels of ours; an operator's own choice stays."""
    monkeypatch.setattr(paged_model, "find_library", lambda: None)
    model = PagedModel(int8_model / FILE, "CPU", properties, tiles)
    model.compile()
    default = openvino.Core().get_property("CPU", ACTIVATION_GROUP)
    assert model.compiled.get_property(ACTIVATION_GROUP) == (default if group is None else group)

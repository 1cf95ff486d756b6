"""Models with layers that keep one state of a sequence in place of keys and values: a prompt has the same answer
whatever ran before.

The files of `tests/vectors/linear_attention` are graphs that optimum-intel 2.2 exports of transformers' models with
one such layer and one of attention, without the weights, which are random: LFM2 with a convolution, Qwen3-Next with a
gated delta rule, Granite 4 with Mamba 2. The graph as it is, computed at once,
is the judge of the paged engine."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

from ovserve.engine.model.files import recurrent_state_bytes
from ovserve.engine.protocol.specs import DraftSpec, PagedTextSpec, TextSpec
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine, continuous
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.running import Running
from tests.engine.real import EXACT, Queued, add, generate, run

VECTORS = Path(__file__).parents[1] / "vectors/linear_attention"
MODELS = sorted(file.name.removesuffix(".json.gz") for file in VECTORS.iterdir())
STATE_BYTES = 4 * 32 * 3  # of three tokens of the only convolution of LFM2
LENGTHS = 9, 32, 255, 300
SCORED = {"max_tokens": 6, "logprobs": True, "ignore_eos": True}

Make = Callable[[str], str]


@pytest.fixture(scope="module")
def make(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make a model of a vector, with the tokenizer of the default model."""
    root = tmp_path_factory.mktemp("linear")

    def make_model(name: str) -> str:
        made = root / name
        if made.is_dir():
            return str(made)
        vector = json.loads(gzip.decompress((VECTORS / f"{name}.json.gz").read_bytes()))
        weights, chance = bytearray(vector["size"]), np.random.default_rng(0)
        for offset, size in vector["random"]:
            weights[offset : offset + size] = chance.normal(0, 0.3, size // 4).astype(np.float32).tobytes()
        for offset, value in vector["constants"].items():
            constant = bytes.fromhex(value)
            weights[int(offset) : int(offset) + len(constant)] = constant
        made.mkdir()
        for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
            shutil.copy(Path(model_path) / file, made)
        for tokenizer in Path(model_path).glob("openvino_*tokenizer.*"):
            shutil.copy(tokenizer, made)
        (made / "openvino_model.xml").write_text(vector["xml"])
        (made / "openvino_model.bin").write_bytes(weights)
        return str(made)

    return make_model


@pytest.fixture
def directory(make: Make) -> str:
    return make("lfm2")


def engine(directory: str, cache_size: int = 0) -> GenAIEngine:
    return GenAIEngine(
        TextSpec(directory, enable_prefix_caching=True, cache_size=cache_size, properties=EXACT)
    )


def prompts() -> list[tuple[int, ...]]:
    chance = random.Random(3)
    return [tuple(chance.randrange(1000, 20000) for _ in range(length)) for length in LENGTHS]


def answers_again(engine: GenAIEngine) -> list[bool]:
    """For each prompt, whether it has the same answer after one that ended with its first token."""
    same = []
    for prompt in prompts():
        first = generate(engine, prompt, **{**SCORED, "max_tokens": 1}).logprobs
        again = generate(engine, prompt, **SCORED).logprobs
        same.append(first == pytest.approx(again[:1], abs=1e-3))
    return same


def test_the_size_of_a_state(directory: str, model_path: str) -> None:
    assert recurrent_state_bytes(directory) == STATE_BYTES
    assert recurrent_state_bytes(model_path) == 0


def test_a_prompt_again(directory: str, capfd: pytest.CaptureFixture[str]) -> None:
    served = engine(directory)
    assert "no prefixes are cached" in capfd.readouterr().err
    assert answers_again(served) == [True] * len(LENGTHS)


def test_the_library_caches_wrongly(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, the prefix cache can be on for such models."""
    monkeypatch.setattr(continuous, "recurrent_state_bytes", lambda _: 0)
    assert not all(answers_again(engine(directory)))


def test_after_a_cancelled_request(directory: str) -> None:
    served = engine(directory)
    expected = [generate(served, prompt, **SCORED).logprobs for prompt in prompts()]
    for number, prompt in enumerate(prompts(), 50):
        add(served, number, prompt, **SCORED)
        while not served.collect():
            served.step()
        served.abort(number)
        run(served)
    again = [generate(served, prompt, **SCORED).logprobs for prompt in prompts()]
    assert again == [pytest.approx(each, abs=1e-3) for each in expected]


def test_a_bounded_cache_has_room_for_some_states(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "most_states", lambda *_: 2)
    queued = Queued(engine(directory, cache_size=1))
    for number, prompt in enumerate(prompts()):
        queued.add(number, prompt, **SCORED)
    together = [result.logprobs for _, result in sorted(queued.run().items())]
    assert queued.most == 2
    free = engine(directory)
    assert together == [
        pytest.approx(generate(free, prompt, **SCORED).logprobs, abs=1e-3) for prompt in prompts()
    ]
    with pytest.raises(InvalidArgument, match="3 beams: the cache has room for 2 sequences"):
        add(queued.engine, 9, prompts()[0], beams=3)
    assert generate(queued.engine, prompts()[0], beams=2, max_tokens=4).finish == "length"


def paged(directory: str, **options: Any) -> PagedEngine:
    return PagedEngine(PagedTextSpec(directory, enable_prefix_caching=True, properties=EXACT, **options))


def judge(directory: str, ids: list[int], first: int) -> list[float]:
    """Return the log-probabilities of the tokens from `first` on, computed at once by the model as it is."""
    compiled = openvino.Core().compile_model(Path(directory) / "openvino_model.xml", "CPU", json.loads(EXACT))
    inputs = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "position_ids": [[*range(len(ids))]]}
    names = {name for port in compiled.inputs for name in port.names}
    tensors = {name: np.array(value) for name, value in inputs.items() if name in names}
    logits = compiled.create_infer_request().infer(tensors | {"beam_idx": np.zeros(1, np.int32)})[0][0]
    rows = logits[first - 1 : -1].astype(np.float64)
    scores = rows - np.logaddexp.reduce(rows, 1, keepdims=True)
    return [float(row[id_]) for row, id_ in zip(scores, ids[first:], strict=True)]


class Served:
    """A paged engine that keeps the ids of its answers."""

    def __init__(self, directory: str, **options: Any) -> None:
        self.directory, self.engine = directory, paged(directory, **options)
        self.running: dict[int, Running] = {}

    def add(self, prompt: tuple[int, ...], **sampling: Any) -> int:
        id_ = len(self.running)
        accepted = add(self.engine, id_, prompt, **{**SCORED, "skip_special_tokens": False, **sampling})
        self.running[id_] = self.engine._scheduler.running[id_]
        return accepted.cached_tokens

    def check(self) -> int:
        """Run all to their ends, and let each answer be judged; return how many drafts were accepted."""
        results = run(self.engine)
        for id_, result in results.items():
            running = self.running[id_]
            expected = judge(self.directory, running.ids.tolist(), running.num_prompt_tokens)
            assert result.logprobs == pytest.approx(expected, abs=1e-3)
        return sum(result.accepted for result in results.values())


@pytest.mark.parametrize("name", MODELS)
def test_the_paged_engine_answers_as_the_model_does(make: Make, name: str) -> None:
    """Alone, again with a cached prefix, after a request that was cancelled, and all at once."""
    served = Served(make(name))
    for prompt in prompts() * 2:
        served.add(prompt)
        served.check()
    for prompt in prompts():
        served.add(prompt[:-1])
        served.engine.step()
        served.engine.abort(len(served.running) - 1)
    for prompt in prompts():
        served.add(prompt, max_tokens=70)
    served.check()


@pytest.mark.parametrize("name", MODELS)
def test_beams_are_those_of_the_model(make: Make, name: str) -> None:
    served = Served(make(name))
    for prompt in prompts():
        served.add(prompt, beams=4, max_tokens=40)
    run(served.engine)
    for running in served.running.values():
        assert running.search is not None
        for best in running.search.finish():
            ids = [*running.ids[: running.num_prompt_tokens], *best.ids]
            expected = judge(served.directory, ids, running.num_prompt_tokens)
            assert [each.logprob for each in best.scored] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_preempted_requests_answer_as_the_model_does(
    make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(make(name), num_kv_blocks=22)
    restarts = 0
    release = served.engine._scheduler._release

    def count(running: Running) -> None:
        nonlocal restarts
        restarts += running.num_computed_tokens > running.num_prompt_tokens
        release(running)

    monkeypatch.setattr(served.engine._scheduler, "_release", count)
    for prompt in prompts():
        served.add(prompt, max_tokens=150)
    served.check()
    assert restarts > len(LENGTHS), "each is released once at its end"


@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_verified_with_the_states_behind_them(
    make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, plain = Served(make(name)), Served(make(name))
    plain.add(prompts()[2], max_tokens=150, num_assistant_tokens=0)
    plain.check()
    answer = plain.running[0].ids.tolist()

    def draft(running: Running, num_decoding: int) -> tuple[int, ...]:
        """Up to four tokens that follow, and one that does not."""
        at = len(running.ids)
        return (*answer[at : at + at % 5], 7)[: (running.remaining_tokens or 1) - 1]

    monkeypatch.setattr(served.engine, "_draft", draft)
    for _ in range(3):
        served.add(prompts()[2], max_tokens=150)
    assert served.check() > 150
    assert [running.ids.tolist() for running in served.running.values()] == [answer] * 3
    served.add((*answer, 1, 2, 3), max_tokens=1, num_assistant_tokens=0)
    assert served.engine._scheduler.running[3].num_computed_tokens == 404 // BLOCK_TOKENS * BLOCK_TOKENS
    served.check()


def test_a_draft_model_for_one_with_states(make: Make, model_path: str) -> None:
    """The default model has the same tokens. What it proposes is almost never accepted, and changes nothing."""
    served = Served(make("qwen3_next"), draft=DraftSpec(model_path))
    for prompt in prompts():
        served.add(prompt, max_tokens=20)
    served.check()
    with pytest.raises(LoadError, match="a draft model with linear attention is not possible"):
        paged(make("lfm2"), draft=DraftSpec(make("qwen3_next")))


def cached(served: Served, prompt: tuple[int, ...], most: int = 1) -> tuple[int, tuple[int, ...]]:
    """Return how many tokens of a prompt were cached, and the prompt with its answer."""
    tokens = served.add(prompt, max_tokens=most)
    served.check()
    return tokens, tuple(served.running[len(served.running) - 1].ids)


def test_the_next_turn_goes_on_where_the_answer_ended(make: Make) -> None:
    served, prompt = Served(make("qwen3_next")), prompts()[2]
    none, whole = cached(served, prompt, 100)
    assert (none, len(whole)) == (0, 355)
    assert cached(served, (*whole, 7, 8, 9))[0] == 354 // BLOCK_TOKENS * BLOCK_TOKENS
    assert cached(served, (*prompt, 7, 8, 9))[0] == 254 // BLOCK_TOKENS * BLOCK_TOKENS, (
        "thinking was left out"
    )


def test_the_third_prompt_finds_what_two_began_with(make: Make) -> None:
    served, system = Served(make("granitemoehybrid")), prompts()[3][: 5 * BLOCK_TOKENS + 9]
    assert [cached(served, (*system, *(1000 + at,) * 40))[0] for at in range(4)] == [0, 0, 160, 160]


def test_more_beams_than_states(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovserve.kinds.text.worker.paged.engine.MAX_STATES", 8)
    served = Served(make("qwen3_next"))
    with pytest.raises(InvalidArgument, match="4 beams: the cache has room for the states of 3"):
        served.add(prompts()[0], beams=4)
    for number, prompt in enumerate(prompts() * 3):
        served.add(prompt, beams=1 + 2 * (number % 2), logprobs=False)
    assert [result.finish for result in run(served.engine).values()] == ["length"] * 12


def test_no_memory_for_a_state_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(make("lfm2"))
    assert served.engine._scheduler.states is not None
    served.add(prompts()[0])
    assert run(served.engine)[0].finish == "length"
    monkeypatch.setattr(served.engine, "_room", lambda size: 0)
    for prompt in prompts():
        served.add(prompt, beams=4)
    results = [result for id_, result in run(served.engine).items() if id_]
    assert [result.failed and result.failed.kind for result in results] == ["resource_exhausted"] * len(
        LENGTHS
    )


def test_a_search_goes_on_with_what_it_reserved(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take the memory after it began."""
    served = Served(make("qwen3_next"))
    assert (states := served.engine._scheduler.states) is not None
    served.add(prompts()[0], beams=4, logprobs=False)
    served.engine.step()
    monkeypatch.setattr(served.engine, "_room", lambda size: 0)
    assert not states._slots.can_allocate(states.size)
    assert states.withheld == states._slots.size - states.touched
    assert run(served.engine)[0].finish == "length"

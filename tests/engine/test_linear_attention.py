"""Models with layers that keep one state of a sequence in place of keys and values: a prompt has the same answer
whatever ran before.

`tests/vectors/linear_attention/lfm2.json.gz` is the graph that optimum-intel 2.2 exports of transformers' LFM2 with a
convolution and an attention, without its weights, which are random."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from ovserve.engine.model.files import recurrent_state_bytes
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.worker.genai import GenAIEngine, continuous
from tests.engine.real import EXACT, Queued, add, generate, run

VECTOR = Path(__file__).parents[1] / "vectors/linear_attention/lfm2.json.gz"
STATE_BYTES = 4 * 32 * 3  # of three tokens of the only convolution
LENGTHS = 9, 32, 255, 300
SCORED = {"max_tokens": 6, "logprobs": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def directory(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """With the tokenizer of the default model."""
    vector = json.loads(gzip.decompress(VECTOR.read_bytes()))
    weights, chance = bytearray(vector["size"]), np.random.default_rng(0)
    for offset, size in vector["random"]:
        weights[offset : offset + size] = chance.normal(0, 0.3, size // 4).astype(np.float32).tobytes()
    for offset, value in vector["constants"].items():
        constant = bytes.fromhex(value)
        weights[int(offset) : int(offset) + len(constant)] = constant
    made = tmp_path_factory.mktemp("linear") / "lfm2"
    made.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(Path(model_path) / name, made)
    for file in Path(model_path).glob("openvino_*tokenizer.*"):
        shutil.copy(file, made)
    (made / "openvino_model.xml").write_text(vector["xml"])
    (made / "openvino_model.bin").write_bytes(weights)
    return str(made)


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

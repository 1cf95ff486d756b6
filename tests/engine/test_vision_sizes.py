"""A model whose images have as many tokens as their size wants: Qwen2-VL, made by tests/qwen2vl_model.py."""

from __future__ import annotations

import os

import pytest

from ovserve.engine.genai import GenAIEngine
from ovserve.engine.messages import EngineSpec
from ovserve.errors import InvalidArgument
from ovserve.llm.images import tag
from tests.engine.real import CHAT, run
from tests.engine.test_vision import add, generate, image

DIRECTORY = os.environ.get("OVSERVE_TEST_QWEN2VL", "")
SIZES = [(64, 48), (640, 480), (32, 32), (1600, 32), (32, 1600), (2048, 768), (100, 333)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DIRECTORY, reason="OVSERVE_TEST_QWEN2VL names no model; see tests/qwen2vl_model.py"
    ),
]


@pytest.fixture(scope="module")
def engine() -> GenAIEngine:
    return GenAIEngine(EngineSpec(DIRECTORY, enable_prefix_caching=True))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_prompt_tokens_are_the_librarys(engine: GenAIEngine, width: int, height: int, times: int) -> None:
    tags = "\n".join(map(tag, range(times)))
    id_, counted = add(
        engine, CHAT.format(f"a {tags}\n\n b"), *[image(n, width, height) for n in range(times)]
    )
    handle = engine._live[id_].handle
    run(engine)
    assert handle.get_perf_metrics().get_num_input_tokens() == counted


def test_the_answer_depends_on_the_image(engine: GenAIEngine) -> None:
    prompt = CHAT.format(f"{tag(0)}what is it?")
    answers = {generate(engine, prompt, image(n, 640, 480)).text for n in (1, 1, 2)}
    assert len(answers) == 2


@pytest.mark.parametrize(
    "marker", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|video_pad|>"]
)
def test_markers_of_its_own_are_refused(engine: GenAIEngine, marker: str) -> None:
    with pytest.raises(InvalidArgument, match="is how this model marks an image"):
        add(engine, CHAT.format(marker))
    assert generate(engine, CHAT.format("hello")).tokens == 12

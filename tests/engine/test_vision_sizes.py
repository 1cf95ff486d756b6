"""A model whose images have as many tokens as their size wants, and positions in three dimensions: Qwen2-VL, made
by scripts/qwen2vl_model.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ovserve.engine.protocol.specs import StatefulTextSpec, TextSpec
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.worker.genai import GenAIEngine, StatefulEngine
from ovserve.kinds.text.worker.genai.vision import PROBES
from ovserve.llm.images import tag
from scripts.qwen2vl_model import MARKS, image_tokens, make
from tests.engine.real import CHAT, EXACT, run
from tests.engine.test_vision import add, generate, image, steps_of

pytestmark = pytest.mark.long

SIZES = [(64, 48), (640, 480), (32, 32), (1600, 32), (32, 1600), (2048, 768), (100, 333)]
SIZES += [
    (768, 768),
    (70, 42),
    (1024, 511),
    (634, 634),
    (2048, 41),
]  # about half a square, and about the bounds


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("qwen2vl")
    make(made)
    return made


@pytest.fixture(scope="module")
def engine(directory: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(directory), enable_prefix_caching=True, properties=EXACT))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_prompt_tokens_are_the_librarys(engine: GenAIEngine, width: int, height: int, times: int) -> None:
    tags = "\n".join(map(tag, range(times)))
    images = [image(n, width, height) for n in range(times)]
    id_, counted = add(engine, CHAT.format(f"a {tags}\n\n b"), *images, max_tokens=2)
    handle = engine._live[id_].handle
    run(engine)
    assert handle.get_perf_metrics().get_num_input_tokens() == counted


def test_they_are_told_before_an_image_is_seen(engine: GenAIEngine) -> None:
    rule = engine.facts.image_tokens
    assert rule is not None
    assert not engine._vision._sizes or set(engine._vision._sizes) == set(PROBES)
    assert rule.of(640, 480) == image_tokens(640, 480)


def test_where_the_files_do_not_say_how_many_each_size_is_measured(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "model")
    processor = tmp_path / "model/preprocessor_config.json"
    processor.write_text(processor.read_text().replace("max_pixels", "most_pixels"))
    engine = GenAIEngine(TextSpec(str(tmp_path / "model")))
    assert engine.facts.image_tokens is None
    before = add(engine, CHAT.format("a"))[1]
    assert add(engine, CHAT.format(f"a{tag(0)}"), image(1, 320, 240))[1] == before + image_tokens(320, 240)
    run(engine)


@pytest.mark.parametrize(("width", "height"), [(64, 48), (640, 480), (100, 333)])
def test_an_image_has_the_tokens_of_its_size(engine: GenAIEngine, width: int, height: int) -> None:
    plain, seeing = CHAT.format("a"), CHAT.format(f"a{tag(0)}")
    more = add(engine, seeing, image(1, width, height))[1] - add(engine, plain)[1]
    run(engine)
    assert more == image_tokens(width, height)


def test_the_answer_depends_on_the_image_and_on_where_its_parts_are(engine: GenAIEngine) -> None:
    prompt = CHAT.format(f"{tag(0)}what is it?")
    wide, high = image(1, 112, 28), image(1, 28, 112)  # the same pixels in the same order
    answers = {
        generate(engine, prompt, seen).text for seen in (wide, image(1, 112, 28), image(2, 112, 28), high)
    }
    assert len(answers) == 3


def test_one_at_a_time_gives_the_same(engine: GenAIEngine, directory: Path) -> None:
    other = StatefulEngine(StatefulTextSpec(str(directory), properties=EXACT))
    prompt = CHAT.format(f"a {tag(0)} b {tag(1)} c")
    images = image(1, 640, 480), image(2, 64, 64)
    assert generate(other, prompt, *images).text == generate(engine, prompt, *images).text


def test_an_image_seen_before_is_in_the_prefix_cache(directory: Path) -> None:
    """With 16 tokens a step; another image in the same place is not taken for it."""
    spec = TextSpec(str(directory), enable_prefix_caching=True, max_num_batched_tokens=16)
    engine, turn = GenAIEngine(spec), CHAT.format(f"{tag(0)}what is it?")
    first = steps_of(engine, turn, image(1, 320, 240))
    assert steps_of(engine, f"{turn} A cat.", image(1, 320, 240)) <= first // 3
    assert steps_of(engine, turn, image(2, 320, 240)) >= first - 2  # what stands before it is the same


@pytest.mark.parametrize("marker", [*MARKS, "<|vision_start|><|image_pad|><|vision_end|>"])
def test_markers_of_its_own_are_refused(engine: GenAIEngine, marker: str) -> None:
    with pytest.raises(InvalidArgument, match="is how this model marks an image"):
        add(engine, CHAT.format(marker))
    assert generate(engine, CHAT.format("hello")).tokens == 12

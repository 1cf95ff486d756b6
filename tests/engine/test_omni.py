"""What an Omni model writes, by the tiny one of scripts/omni_model.py: images and text in, text out."""

from __future__ import annotations

from pathlib import Path

import openvino_genai as ov_genai
import pytest

from ovserve.engine.protocol.specs import StatefulTextSpec, TextSpec
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.worker.genai import GenAIEngine, StatefulEngine
from ovserve.llm.images import tag
from scripts.omni_model import MARKS, make
from tests.engine.real import CHAT, EXACT, run
from tests.engine.test_vision import add, generate, image, steps_of

pytestmark = pytest.mark.long

PROMPT = CHAT.format(f"{tag(0)}what is it?")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("omni")
    make(made)
    return made


@pytest.fixture(scope="module")
def engine(directory: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(directory), properties=EXACT))


def test_the_answer_depends_on_the_image(engine: GenAIEngine) -> None:
    seen = [image(1, 112, 56), image(1, 112, 56), image(2, 112, 56), image(1, 56, 112)]
    assert len({generate(engine, PROMPT, one).text for one in seen}) == 3


@pytest.mark.parametrize(("width", "height"), [(64, 48), (640, 480), (1600, 32)])
def test_prompt_tokens_are_the_librarys(engine: GenAIEngine, width: int, height: int) -> None:
    id_, counted = add(engine, PROMPT, image(1, width, height), max_tokens=2)
    handle = engine._live[id_].handle
    run(engine)
    assert handle.get_perf_metrics().get_num_input_tokens() == counted


def test_requests_do_not_mix_and_pieces_of_a_prompt_make_the_whole(
    engine: GenAIEngine, directory: Path
) -> None:
    """What the eye sees goes into the model a second time, sorted by request and by piece of the prompt."""
    images = image(1, 112, 84), image(2, 640, 480)
    alone = [generate(engine, PROMPT, one).text for one in images]
    text = generate(engine, CHAT.format("hello")).text
    ids = [add(engine, PROMPT, one)[0] for one in images]
    other, _ = add(engine, CHAT.format("hello"))
    together = run(engine)
    assert [together[id_].text for id_ in ids] == alone
    assert together[other].text == text
    spec = TextSpec(str(directory), properties=EXACT, max_num_batched_tokens=16, enable_prefix_caching=True)
    slowly = GenAIEngine(spec)
    assert [generate(slowly, PROMPT, one).text for one in images] == alone
    assert steps_of(slowly, f"{PROMPT} And now?", images[1]) < 10  # of 27: the rest is in the prefix cache


@pytest.mark.parametrize("marker", MARKS)
def test_markers_of_its_own_are_refused(engine: GenAIEngine, marker: str) -> None:
    with pytest.raises(InvalidArgument, match="is how this model marks an image"):
        add(engine, CHAT.format(marker))


def test_one_at_a_time_the_library_still_loses_its_place(engine: GenAIEngine, directory: Path) -> None:
    """Behind an image of one row there is no place to lose. Else the refusal has lost its reason
    (`kinds/text/engine_choice.py`)."""
    other = StatefulEngine(StatefulTextSpec(str(directory), properties=EXACT))
    row, rows = image(1, 112, 28), image(1, 112, 84)
    assert generate(other, PROMPT, row).text == generate(engine, PROMPT, row).text
    assert generate(other, PROMPT, rows).text != generate(engine, PROMPT, rows).text


def test_the_librarys_own_pipeline_asks_the_same_model(directory: Path) -> None:
    """And wants a whole talker to begin with, for which no tiny model was made."""
    with pytest.raises(RuntimeError, match="codec IDs missing"):
        ov_genai.OmniPipeline(str(directory), "CPU")

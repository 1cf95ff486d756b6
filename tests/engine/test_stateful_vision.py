"""A model that sees, one request at a time: the same answers, counts and refusals as by continuous batching."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.engine.protocol.messages import Add, Compiled
from ovserve.engine.protocol.specs import StatefulTextSpec, TextSpec
from ovserve.errors import ContextLengthExceeded, InvalidArgument
from ovserve.kinds.text.worker.genai import GenAIEngine, StatefulEngine
from ovserve.llm.grammar import constraint as c
from ovserve.llm.images import tag
from ovserve.llm.request import Sampling
from scripts.vision_model import IMAGE_TOKENS
from scripts.vision_parts import CONTEXT
from tests.engine.real import EXACT, run
from tests.engine.test_vision import add, generate, ids, image

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def engine(vision_model: Path) -> StatefulEngine:
    return StatefulEngine(StatefulTextSpec(str(vision_model), properties=EXACT))


def test_the_answers_are_those_of_continuous_batching(engine: StatefulEngine, vision_model: Path) -> None:
    other = GenAIEngine(TextSpec(str(vision_model), properties=EXACT))
    for prompt, images in (
        ("hello", ()),
        (f"{tag(0)}hello", (image(1),)),
        (f"a{tag(0)}b{tag(1)}", (image(1), image(2))),
        (f"a{tag(0)}b{tag(1)}", (image(2), image(1))),
        ("hello", ()),
    ):
        one = generate(engine, prompt, *images)
        assert (one.text, one.tokens) == ((two := generate(other, prompt, *images)).text, two.tokens)


def test_prompt_tokens_have_those_of_images(engine: StatefulEngine) -> None:
    id_, counted = add(engine, f"ab{tag(0)}c", image(1))
    assert counted == 3 + IMAGE_TOKENS
    engine.abort(id_)
    while engine.busy:
        engine.step()
        engine.collect()
    with pytest.raises(ContextLengthExceeded):
        add(engine, tag(0) + "a" * CONTEXT, image(1))


def test_several_choices_come_one_after_the_other(engine: StatefulEngine) -> None:
    first, _ = add(engine, f"{tag(0)}hello", image(1))
    second, _ = add(engine, f"{tag(0)}hello", image(2))
    results = run(engine)
    assert results[first].tokens == results[second].tokens == 12
    assert results[first].text != results[second].text


def test_a_grammar_is_held(engine: StatefulEngine) -> None:
    wanted = c.constrain(c.regex("(red|blue)!"), "")
    engine.grammars.compile(-1, c.structural_tag(wanted.format))
    words: list[object] = []
    while not words:
        words += engine.grammars.compiled()
    assert words == [Compiled(-1)]
    result = generate(engine, f"{tag(0)}hi", image(1), constraint=wanted, ignore_eos=False)
    assert result.text in ("red!", "blue!")


@pytest.mark.parametrize(("prompt", "images"), [("<image>hello", 0), (f"{tag(3)}hello", 1), ("hello", 1)])
def test_a_prompt_that_the_library_refuses_raises_before_it_is_accepted(
    engine: StatefulEngine, prompt: str, images: int
) -> None:
    """Else it would end the process, as a fault of the device does."""
    with pytest.raises(InvalidArgument):
        add(engine, prompt, *[image(1)] * images)
    with pytest.raises(InvalidArgument, match="no token ids"):
        engine.add(Add(next(ids), (1, 2), False, Sampling(max_tokens=2)))
    assert generate(engine, "hello").tokens == 12

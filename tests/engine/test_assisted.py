"""Prompt lookup and draft models on the real default model: the same text as without them, where more than one
token is likely. What needs no such model is in test_pair.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ovserve.engine.protocol.specs import DraftSpec, TextSpec
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine
from tests.engine.real import EXACT, LIST, STORY, bare_ids, generate

# Three engines in f32, the only precision in which the texts can be compared: minutes on two cores.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain(ir_directory: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(ir_directory), properties=EXACT))


@pytest.fixture(scope="module")
def lookup(ir_directory: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(ir_directory), properties=EXACT, prompt_lookup=True))


@pytest.fixture(scope="module")
def draft(ir_directory: Path, erring_draft: Path) -> GenAIEngine:
    """With a draft that is right at times: tokens are accepted, and rejected."""
    spec = TextSpec(str(ir_directory), properties=EXACT, draft=DraftSpec(str(erring_draft)))
    return GenAIEngine(spec)


SAME = {
    "list": (LIST, {}),
    "story": (STORY, {}),
    "repetition penalty": (STORY, {"repetition_penalty": 1.2}),
    "other penalties": (LIST, {"presence_penalty": 1.0, "frequency_penalty": 0.7}),
}


@pytest.mark.parametrize("case", SAME)
def test_greedy_text_is_that_of_plain_decoding(plain: GenAIEngine, assisted: GenAIEngine, case: str) -> None:
    prompt, sampling = SAME[case]
    expected, drafted = generate(plain, prompt, **sampling), generate(assisted, prompt, **sampling)
    assert (drafted.text, drafted.finish) == (expected.text, expected.finish)
    assert drafted.tokens == expected.tokens


def test_logprobs_are_those_of_plain_decoding(plain: GenAIEngine, assisted: GenAIEngine) -> None:
    expected = generate(plain, LIST, logprobs=True, max_tokens=24)
    drafted = generate(assisted, LIST, logprobs=True, max_tokens=24)
    assert drafted.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert len(drafted.logprobs) == 24


class TestDraftModel:
    def test_a_perfect_draft_is_wholly_accepted(self, ir_directory: Path) -> None:
        spec = TextSpec(str(ir_directory), properties=EXACT, draft=DraftSpec(str(ir_directory)))
        result = generate(GenAIEngine(spec), STORY, max_tokens=31)
        assert result.reads == [1, 6, 6, 6, 6, 6]
        assert (result.drafted, result.accepted) == (25, 25)

    def test_temperature_is_refused_for_what_the_library_makes_of_it(
        self, plain: GenAIEngine, draft: GenAIEngine
    ) -> None:
        """Drawing from one candidate is greedy decoding, and plain decoding has it so; with a draft the
        library lets drafted tokens pass that the model would not choose."""
        drawn = {"do_sample": True, "temperature": 1.0, "top_k": 1}
        assert bare_ids(plain, STORY, **drawn) == bare_ids(plain, STORY)
        assert bare_ids(draft, STORY) == bare_ids(plain, STORY)
        assert bare_ids(draft, STORY, **drawn) != bare_ids(plain, STORY)

    def test_a_draft_that_does_not_fit_is_a_load_error(self, model_path: str, tmp_path: Path) -> None:
        with pytest.raises(LoadError, match=r"openvino_model\.xml") as caught:
            GenAIEngine(TextSpec(model_path, draft=DraftSpec(str(tmp_path))))
        assert caught.value.field == "draft_models_path"

    def test_eagle3_needs_an_eagle3_draft(self, ir_directory: Path, tmp_path: Path) -> None:
        """One that is none; a tiny one that is: test_eagle3.py."""
        main = tmp_path / "main"
        shutil.copytree(ir_directory, main)
        (main / "config.json").write_text('{"num_hidden_layers": 30}')
        with pytest.raises(LoadError) as caught:
            GenAIEngine(TextSpec(str(main), draft=DraftSpec(str(ir_directory), eagle3=True)))
        assert caught.value.field == "draft_models_path"


class TestPromptLookup:
    def test_sampled_text_is_the_model_s_own(self, plain: GenAIEngine, lookup: GenAIEngine) -> None:
        """One candidate, by top_k: what is drawn is the greedy text, whatever was drafted."""
        drawn = generate(lookup, LIST, temperature=1.0, top_k=1, seed=3)
        assert drawn.text == generate(plain, LIST).text
        assert drawn.accepted > 10

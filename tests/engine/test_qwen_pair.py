"""A draft model that pays for itself, where it can be had: Qwen2.5-Coder-1.5B, and 0.5B as its draft.

Slow: 1.6 GB, which `ovserve pull qwen2.5-coder-1.5b --draft_source_model qwen2.5-coder-0.5b` fetches and converts.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.assisted import PROMPTS
from ovserve.engine.protocol.specs import DraftSpec, TextSpec
from ovserve.kinds.text.worker.genai import GenAIEngine
from tests.conftest import ROOT
from tests.engine.real import CHAT, EXACT, generate

MODELS = Path(os.environ.get("OVSERVE_TEST_PAIR", ROOT / "models"))
MAIN, DRAFT = MODELS / "qwen2.5-coder-1.5b", MODELS / "qwen2.5-coder-0.5b"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def main_model() -> str:
    """The file, or the directory it was converted to."""
    return str(next(MAIN.glob("*.gguf"), MAIN))


@pytest.mark.skipif(
    not (MAIN.is_dir() and (DRAFT / "openvino_model.xml").exists()),
    reason="`ovserve pull qwen2.5-coder-1.5b --draft_source_model qwen2.5-coder-0.5b` fetches the pair",
)
def test_the_text_is_that_of_the_large_model_and_the_small_one_wrote_a_part_of_it() -> None:
    plain = GenAIEngine(TextSpec(main_model(), properties=EXACT))
    expected = {
        kind: generate(plain, CHAT.format(prompt), max_tokens=24).text for kind, prompt in PROMPTS.items()
    }
    del plain
    draft = GenAIEngine(TextSpec(main_model(), properties=EXACT, draft=DraftSpec(str(DRAFT))))
    for kind, prompt in PROMPTS.items():
        result = generate(draft, CHAT.format(prompt), max_tokens=24)
        assert result.text == expected[kind]
        assert 0 < result.accepted <= result.drafted

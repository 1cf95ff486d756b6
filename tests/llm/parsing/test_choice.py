"""Which dialects a model gets: the graph's word, the template's signs, neither; and pairs that cannot be."""

from __future__ import annotations

import pytest

from ovserve.errors import LoadError
from ovserve.llm.parsing.registry import ParserChoice, check_pair, choose

QWEN3 = "<tool_call> </tool_call> <think> </think>"
HARMONY = "<|channel|> <|start|>"


@pytest.mark.parametrize(
    ("tool", "reasoning", "template", "chosen"),
    [
        ("", "", QWEN3, ("hermes3", "qwen3", "template", "template")),
        ("", "", "{{ messages }}", (None, None, "unknown", "unknown")),
        ("", "", None, (None, None, "unknown", "unknown")),
        ("none", "none", QWEN3, (None, None, "off", "off")),
        ("llama3", "", QWEN3, ("llama3", "qwen3", "graph", "template")),
        ("", "lfm2", QWEN3, ("hermes3", "lfm2", "template", "graph")),
        ("", "", HARMONY, ("gptoss", "gptoss", "template", "template")),
        ("hermes3", "", HARMONY, ("hermes3", None, "graph", "unknown")),
        ("none", "", HARMONY, (None, "gptoss", "off", "template")),
        ("gptoss", "", QWEN3, ("gptoss", "gptoss", "graph", "graph")),
        ("gptoss", "none", HARMONY, ("gptoss", None, "graph", "off")),
    ],
)
def test_choice(tool: str, reasoning: str, template: str | None, chosen: tuple[object, ...]) -> None:
    check_pair(tool, reasoning)
    assert choose(tool, reasoning, template) == ParserChoice(*chosen)  # type: ignore[arg-type]


def test_the_log_says_why() -> None:
    assert str(choose("llama3", "", QWEN3)) == (
        "tool parser llama3 (set in the graph), reasoning parser qwen3 (found in the chat template)"
    )


@pytest.mark.parametrize(
    ("tool", "reasoning", "field"),
    [
        ("hermes", "", "tool_parser"),
        ("", "qwen", "reasoning_parser"),
        ("hermes3", "gptoss", "reasoning_parser"),
    ],
)
def test_what_cannot_be(tool: str, reasoning: str, field: str) -> None:
    with pytest.raises(LoadError) as caught:
        check_pair(tool, reasoning)
    assert caught.value.field == field

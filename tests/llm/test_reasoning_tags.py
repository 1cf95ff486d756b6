"""What a budget forces, in every dialect: its parser reads it as the end of the reasoning."""

from __future__ import annotations

import pytest

from ovserve.llm.model import ModelContext
from ovserve.llm.parsing import make_parser
from ovserve.llm.parsing.output import Content, Reasoning
from ovserve.llm.parsing.registry import ParserChoice, default
from ovserve.llm.request import ReasoningBudget, Sampling


def budget_of(name: str, prompt: str, prefill: str = "") -> ReasoningBudget:
    model = ModelContext(parsers=ParserChoice(reasoning=name), decoding="paged")
    budget = model.with_reasoning_tags(
        prompt, Sampling(reasoning_budget=ReasoningBudget(3)), prefill
    ).reasoning_budget
    assert budget is not None
    return budget


@pytest.mark.parametrize("name", default().reasoning_names)
def test_the_parser_reads_the_end_and_then_the_answer(name: str) -> None:
    dialect = default().reasoning(name)
    assert dialect is not None
    budget = budget_of(name, "user: x\nassistant:")
    assert budget.inside == dialect.always
    parser = make_parser(name if dialect.framed else None, name, None, implicit_reasoning=False)
    start = "" if budget.inside else budget.starts[0] + (f"{dialect.label}\n" if dialect.label else "")
    events = parser.feed(f"{start}I think{budget.closing}{dialect.answer}Yes.") + parser.finish()
    assert "".join(event.text for event in events if isinstance(event, Reasoning)).strip() == "I think"
    assert "".join(event.text for event in events if isinstance(event, Content)).strip() == "Yes."


def test_a_prompt_may_open_or_close_the_reasoning() -> None:
    assert budget_of("qwen3", "x<think>\n").inside
    assert budget_of("qwen3", "x<think>\nWell", "<think>\nWell").inside
    assert not budget_of("qwen3", "x<think>\n\n</think>\n\n").inside
    assert not budget_of("deepseek_r1", "x<think></think>").inside
    assert budget_of("deepseek_r1", "x").inside

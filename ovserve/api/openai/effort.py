"""The effort and the budget of reasoning: their values and their effect, the same in every API style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ovserve.api.openai.operation import IGNORED, Override, doc
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.request import ReasoningBudget

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_VARIABLE = "reasoning_effort"  # what templates read of it
SWITCHES = ("enable_thinking", "thinking")
VARIABLES = (EFFORT_VARIABLE, *SWITCHES)
WITHOUT_REASONING = ("none", "minimal")
BUDGET = "tokens of reasoning, which the paged engine then ends; 0: none"
MESSAGE = "reasoning_budget_message"
Budget = Annotated[int, Meta(ge=0, le=2**31 - 1)]
BudgetOrNone = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # -1: no budget
DOC = "given to templates that read it, enable_thinking or thinking"


class ReasoningOptions(msgspec.Struct):
    effort: Annotated[Effort | None, doc(DOC)] = None
    max_tokens: Annotated[Budget | None, doc(BUDGET)] = None
    summary: Annotated[str | None, doc("no effect: thoughts are given as they are")] = None
    generate_summary: Annotated[str | None, doc("no effect: an older name of summary")] = None


def reasoning_budget(
    budgets: Mapping[str, int | None], model: ModelContext, message: str | None = None
) -> tuple[ReasoningBudget | None, list[str]]:
    """Return the budget of the fields in `budgets`, and the fields without effect on this model.

    Raises InvalidArgument for more than one budget."""
    present = {name: tokens for name, tokens in budgets.items() if tokens is not None}
    if len(present) > 1:
        both = " and ".join(f"{name}: {tokens}" for name, tokens in present.items())
        raise InvalidArgument(f"{both} exclude each other", param=next(iter(present)))
    names = [*present, *([MESSAGE] if message is not None else [])]
    if _no_budget(model):
        return None, names
    for tokens in present.values():
        if tokens >= 0:
            return ReasoningBudget(tokens, message or ""), []
    return None, [name for name in names if name == MESSAGE]


def narrow_budget(model: ModelContext, *fields: str) -> dict[str, Override]:
    """Return the change in capabilities for a model whose reasoning cannot be ended."""
    why = _no_budget(model)
    return dict.fromkeys(fields, Override(status=IGNORED, why=why)) if why else {}


def _no_budget(model: ModelContext) -> str:
    if model.decoding != "paged":
        return "only the paged engine ends the reasoning"
    return "" if model.parsers.reasoning else "the graph has no reasoning parser"


def effort_variables(
    effort: Effort | None, model: ModelContext, kwargs: dict[str, Any] | None, field: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the client's chat_template_kwargs with the effort in them, and `field` if the template reads
    none of its variables.

    As in OVMS, an effort turns reasoning on, unless the client set the template's switch itself.
    """
    variables = dict(kwargs or {})
    if effort is None:
        return variables, []
    assert model.template is not None, "checked before"
    supported = [name for name in VARIABLES if model.template.mentions(name)]
    for name in supported:
        variables.setdefault(name, effort if name == EFFORT_VARIABLE else effort not in WITHOUT_REASONING)
    return variables, [] if supported else [field]


def narrow_effort(model: ModelContext, field: str) -> dict[str, Override]:
    """Return the change in capabilities for a model whose template reads no effort."""
    if model.template is None or any(map(model.template.mentions, VARIABLES)):
        return {}
    why = "this model's chat template reads none of " + ", ".join(VARIABLES)
    return {field: Override(status=IGNORED, why=why)}

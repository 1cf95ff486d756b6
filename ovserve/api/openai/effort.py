"""The effort of reasoning: its values and its effect, the same in every API style."""

from __future__ import annotations

from typing import Any, Literal

from ovserve.api.openai.describe.operation import IGNORED, Override
from ovserve.llm.model import ModelContext

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_VARIABLE = "reasoning_effort"  # what templates read of it
SWITCHES = ("enable_thinking", "thinking")
VARIABLES = (EFFORT_VARIABLE, *SWITCHES)
WITHOUT_REASONING = ("none", "minimal")
DOC = "given to templates that read it, enable_thinking or thinking"


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
    read = [name for name in VARIABLES if model.template.mentions(name)]
    for name in read:
        variables.setdefault(name, effort if name == EFFORT_VARIABLE else effort not in WITHOUT_REASONING)
    return variables, [] if read else [field]


def narrow_effort(model: ModelContext, field: str) -> dict[str, Override]:
    """Return the change in capabilities for a model whose template reads no effort."""
    if model.template is None or any(map(model.template.mentions, VARIABLES)):
        return {}
    why = "this model's chat template reads none of " + ", ".join(VARIABLES)
    return {field: Override(status=IGNORED, why=why)}

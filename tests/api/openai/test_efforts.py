"""Efforts of reasoning that a template does not know, from each API style."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.api.anthropic.messages import Messages
from ovserve.api.ollama.endpoints import Chat
from ovserve.api.openai.chat import ChatCompletions
from ovserve.api.openai.operation import TextEndpoint
from ovserve.api.openai.responses import Responses
from ovserve.llm.arrangement import EFFORTS
from ovserve.llm.model import ModelContext
from tests.rendering import probed, rendered

TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"
WRITES = "{{ 'Reasoning: ' + (reasoning_effort or 'medium') }}"  # as gpt-oss does
KIMI_K3 = "{{ 'Reasoning: ' + (thinking_effort or 'medium') }}"
MESSAGES = [{"role": "user", "content": "x"}]
BODY = {"model": "m", "messages": MESSAGES, "max_tokens": 8}
STYLES: dict[str, tuple[TextEndpoint, Any]] = {
    "reasoning_effort": (ChatCompletions(), lambda effort: BODY | {"reasoning_effort": effort}),
    "reasoning.effort": (
        Responses(),
        lambda effort: {"model": "m", "input": "x", "reasoning": {"effort": effort}},
    ),
    "output_config.effort": (Messages(), lambda effort: BODY | {"output_config": {"effort": effort}}),
    "think": (Chat(), lambda effort: {"model": "m", "messages": MESSAGES, "think": effort}),
}
OFF: dict[str, tuple[TextEndpoint, Any]] = {
    "thinking": (Messages(), BODY | {"thinking": {"type": "disabled"}}),
    "think": (Chat(), {"model": "m", "messages": MESSAGES, "think": False}),
}


def asked(endpoint: TextEndpoint, body: Any, template: str) -> tuple[Any, tuple[str, ...]]:
    """Return the prompt, and what is reported."""
    model = ModelContext(template=probed(template))
    request = endpoint.to_request(endpoint.decode(json.dumps(body).encode()), model)
    return rendered(request, model).prompts[0], request.presentation.ignored_params


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("field", STYLES)
@pytest.mark.parametrize("writes", [WRITES, KIMI_K3])
def test_a_template_that_writes_efforts_gets_the_nearest_it_knows(
    writes: str, field: str, effort: str
) -> None:
    endpoint, body = STYLES[field]
    known = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}.get(effort, effort)
    prompt, reported = asked(endpoint, body(effort), writes + TEXT)
    assert prompt.startswith(f"Reasoning: {known}x")
    assert (f"{field}:{effort}={known}" in reported) is (known != effort)


def test_an_effort_that_a_template_names_is_given_as_it_is() -> None:
    names = "{% if reasoning_effort == 'xhigh' %}!{% endif %}" + WRITES + TEXT
    chooses = "{{ 'deep ' if reasoning_effort in ['high', 'max'] }}" + TEXT
    endpoint, body = STYLES["reasoning_effort"]
    for template, effort, prompt in ((names, "xhigh", "!Reasoning: xhighx"), (chooses, "max", "deep x")):
        assert asked(endpoint, body(effort), template) == (prompt, ())


@pytest.mark.parametrize("field", OFF)
def test_reasoning_that_is_only_lowered_when_it_is_turned_off_is_reported(field: str) -> None:
    prompt, reported = asked(*OFF[field], WRITES + TEXT)
    assert prompt == "Reasoning: lowx"
    assert f"{field}:none=low" in reported
    assert asked(*OFF[field], "{{ enable_thinking }}" + TEXT) == ("Falsex", ())

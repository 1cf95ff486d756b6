"""Chat templates rendered in the test's own process, for tests of what is put into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest
from ovserve.llm.template import CompiledTemplate


def probed(template: ChatTemplate | str) -> ChatTemplate:
    """As `Templates.load` answers."""
    template = template if isinstance(template, ChatTemplate) else ChatTemplate(template)
    return replace(template, expects=CompiledTemplate(template).expects)


def render(template: ChatTemplate | str, messages: Any, kwargs: Any = None, **options: Any) -> str:
    known = probed(template)
    return CompiledTemplate(known).render(known.conversation(messages, kwargs, **options))


def rendered(request: GenerateRequest, model: ModelContext) -> GenerateRequest:
    """As the nodes have it done (`LlmResources.rendered`)."""
    if request.conversation is None:
        return request
    assert model.template is not None
    prompt = CompiledTemplate(model.template).render(request.conversation)
    return msgspec.structs.replace(request, prompts=(prompt,), conversation=None)

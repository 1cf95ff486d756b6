"""Make a large body a request for the engine, in a body process and in one call.

Called by name from `node.py`. The request comes back without the parts whose size the client chooses
freely: the conversation is JSON text, and the presentation keeps only what its writer reads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.endpoint import TextEndpoint
from ovserve.api.openai.responses.request import DecodedResponses, ResponseContext
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.endpoints import ENDPOINTS
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.chat_template import Conversation, EncodedConversation
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.llm.tooling import ToolPolicy


def decode_within(endpoint: TextEndpoint, body: bytes, context: ResponseContext | None) -> Any:
    """The decoded body, with what a service knows of the request. Raises InvalidArgument."""
    decoded = endpoint.decode(body)
    return decoded.within(context) if isinstance(decoded, DecodedResponses) and context else decoded


def parse(
    endpoint: str, body: bytes, model: ModelContext, context: ResponseContext | None = None
) -> GenerateRequest:
    """Raises InvalidArgument as the endpoint does."""
    selected = ENDPOINTS[endpoint]
    request = selected.to_request(decode_within(selected, body, context), model)
    conversation = request.conversation
    if isinstance(conversation, Conversation):
        conversation = encoded(conversation)
    presentation = request.presentation.without_input()
    return msgspec.structs.replace(request, conversation=conversation, presentation=presentation, parts=None)


def encoded(conversation: Conversation) -> EncodedConversation:
    """Raises InvalidArgument."""
    try:
        return EncodedConversation.of(conversation)
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidArgument(
            f"{conversation.param}: cannot be given to the chat template: {error}", param=conversation.param
        ) from None


def constrained(
    model: ModelContext, prompt: str, sampling: Sampling, tools: ToolPolicy | None, prefill: str
) -> Sampling:
    """`ModelContext.constrained`, for a body process where the schemas of tools take long."""
    return model.constrained(prompt, sampling, tools, prefill)

"""Make a large body a request for the engine, in a body process and in one call.

Called by name from `http_frontend.py`. The request comes back without the parts whose size the client chooses
freely: the conversation is JSON text, and the decoded body keeps only what its writer reads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.anthropic.body import MessagesRequest
from ovserve.api.openai.chat import ChatRequest
from ovserve.api.openai.responses.endpoint import DecodedResponses as DecodedResponse
from ovserve.calculators.endpoints import ENDPOINTS
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.chat_template import Conversation, EncodedConversation
from ovserve.llm.request import GenerateRequest


def parse(endpoint: str, body: bytes, model: ModelContext) -> GenerateRequest:
    """Raises InvalidArgument as the endpoint does."""
    found = ENDPOINTS[endpoint]
    made = found.to_request(found.decode(body), model)
    conversation = made.conversation
    if isinstance(conversation, Conversation):
        conversation = encoded(conversation)
    return msgspec.structs.replace(made, conversation=conversation, source=_kept(made.source), parts=None)


def encoded(conversation: Conversation) -> EncodedConversation:
    """Raises InvalidArgument."""
    try:
        return EncodedConversation.of(conversation)
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidArgument(
            f"{conversation.param}: cannot be given to the chat template: {error}", param=conversation.param
        ) from None


def _kept(source: Any) -> Any:
    """What the endpoint's writer reads of it."""
    if isinstance(source, DecodedResponse):
        return source.without_input()
    if isinstance(source, MessagesRequest):
        return msgspec.structs.replace(source, messages=[], system=None, tools=None)
    if isinstance(source, ChatRequest) and source.functions is not None:
        return msgspec.structs.replace(source, messages=[], tools=None, functions=[])
    return None

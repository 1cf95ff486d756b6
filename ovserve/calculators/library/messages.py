"""The text of a request, whatever its endpoint: what an author's node reads and inserts.

A request to an endpoint with messages has a conversation until it is rendered; one to `completions` has
prompts. A large conversation stays encoded, and is read and changed in a body process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.chat_template import Conversation, EncodedConversation
from ovserve.llm.request import GenerateRequest

SYSTEM_ROLES = ("system", "developer")


async def question(llm: LlmResources, request: GenerateRequest) -> str:
    """Return the text of the last user message, or the prompts."""
    return await _read(llm, request, _question)


async def prompt_text(llm: LlmResources, request: GenerateRequest) -> str:
    """Return the text of all messages, or the prompts."""
    return await _read(llm, request, _all_text)


async def messages_of(llm: LlmResources, request: GenerateRequest) -> list[dict[str, Any]]:
    """Return the messages; a plain prompt as one message of the user."""
    if request.conversation is not None:
        large = isinstance(request.conversation, EncodedConversation)
        messages: list[dict[str, Any]] = await llm.bodies.run(large, _messages, request.conversation)
        return messages
    return [{"role": "user", "content": await prompt_text(llm, request)}]


async def with_system_text(llm: LlmResources, request: GenerateRequest, text: str) -> GenerateRequest:
    """Return the request with text at the end of its system message, or before its prompts.

    Raises InvalidArgument for a prompt of token ids, in which text has no place.
    """
    conversation = request.conversation
    if conversation is not None:
        large = isinstance(conversation, EncodedConversation)
        changed = await llm.bodies.run(large, _inserted, conversation, text)
        return msgspec.structs.replace(request, conversation=changed)
    if not all(isinstance(prompt, str) for prompt in request.prompts):
        raise InvalidArgument.at("prompt", "this graph inserts text, so give text, not token ids")
    prompts = tuple(f"{text}\n\n{prompt}" for prompt in request.prompts)
    return msgspec.structs.replace(request, prompts=prompts)


async def _read(llm: LlmResources, request: GenerateRequest, operation: Any) -> str:
    conversation = request.conversation
    if conversation is not None:
        text: str = await llm.bodies.run(
            isinstance(conversation, EncodedConversation), operation, conversation
        )
        return text
    texts = [
        prompt if isinstance(prompt, str) else await llm.detokenize(prompt) for prompt in request.prompts
    ]
    return "\n".join(texts)


def _decoded(conversation: Conversation | EncodedConversation) -> Conversation:
    if isinstance(conversation, Conversation):
        return conversation
    return msgspec.json.decode(conversation.json, type=Conversation)


def _messages(conversation: Conversation | EncodedConversation) -> list[dict[str, Any]]:
    return [dict(message) for message in _decoded(conversation).messages]


def _question(conversation: Conversation | EncodedConversation) -> str:
    messages = _decoded(conversation).messages
    user_messages = (message for message in reversed(messages) if message.get("role") == "user")
    return text_of(next(user_messages, {}))


def _all_text(conversation: Conversation | EncodedConversation) -> str:
    return "\n".join([text_of(message) for message in _decoded(conversation).messages])


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "\n".join([part["text"] for part in parts if isinstance(part, Mapping) and "text" in part])


def _inserted(
    conversation: Conversation | EncodedConversation, text: str
) -> Conversation | EncodedConversation:
    plain = _decoded(conversation)
    messages = [dict(message) for message in plain.messages]
    if messages and messages[0].get("role") in SYSTEM_ROLES:
        content = messages[0].get("content")
        if isinstance(content, list | tuple):
            messages[0]["content"] = [*content, {"type": "text", "text": text}]
        else:
            messages[0]["content"] = f"{content}\n\n{text}" if content else text
    else:
        messages.insert(0, {"role": "system", "content": text})
    changed = msgspec.structs.replace(plain, messages=messages)
    return EncodedConversation.of(changed) if isinstance(conversation, EncodedConversation) else changed

"""Log-probabilities in the two shapes OpenAI has: chat's list of tokens, and completions' parallel lists.

The engine gives the chosen token's log-probability only, so a "top" list has that one token at most.
"""

from __future__ import annotations

import msgspec

from ovserve.llm.request import TokenLogprob

MISSING = -9999.0  # OpenAI's number for "unknown" where the shape has no null


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


def chat_logprobs(tokens: list[TokenLogprob], top: bool) -> ChatLogprobs:
    content = []
    for token in tokens:
        logprob = MISSING if token.logprob is None else token.logprob
        ids = list(token.utf8)
        tops = [TopLogprob(token.text, logprob, ids)] if top else []
        content.append(ChatTokenLogprob(token.text, logprob, ids, tops))
    return ChatLogprobs(content)


def completion_logprobs(tokens: list[TokenLogprob], top: bool, start: int = 0) -> CompletionLogprobs:
    """`start`: the characters of this choice that earlier chunks have carried."""
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.text)
    tops: list[dict[str, float] | None] | None = None
    if top:
        tops = [None if t.logprob is None else {t.text: t.logprob} for t in tokens]
    return CompletionLogprobs(offsets, [t.logprob for t in tokens], [t.text for t in tokens], tops)

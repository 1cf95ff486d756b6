"""Log-probabilities in the two shapes OpenAI has: chat's list of tokens, and completions' parallel lists.

Most engines give the chosen token's log-probability only; a "top" list then has that one token at most.
"""

from __future__ import annotations

import msgspec

from ovserve.llm.request import TokenLogprob, TopToken

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


def top_of(token: TokenLogprob, top: int) -> tuple[TopToken, ...]:
    """Return the `top` most likely tokens, or the chosen one if the engine has named none."""
    if not top:
        return ()
    if token.top:
        return token.top[:top]
    return (TopToken(token.text, token.utf8, MISSING if token.logprob is None else token.logprob),)


def chat_logprobs(tokens: list[TokenLogprob], top: int) -> ChatLogprobs:
    """`top`: how many of the most likely tokens to show at each place."""
    content = []
    for token in tokens:
        logprob = MISSING if token.logprob is None else token.logprob
        tops = [TopLogprob(one.text, one.logprob, list(one.utf8)) for one in top_of(token, top)]
        content.append(ChatTokenLogprob(token.text, logprob, list(token.utf8), tops))
    return ChatLogprobs(content)


def completion_logprobs(tokens: list[TokenLogprob], top: int, start: int = 0) -> CompletionLogprobs:
    """`top` as above; `start`: the characters of this choice that earlier chunks have carried."""
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.text)
    tops: list[dict[str, float] | None] | None = None
    if top:
        tops = [_top_map(token, top) for token in tokens]
    return CompletionLogprobs(offsets, [t.logprob for t in tokens], [t.text for t in tokens], tops)


def _top_map(token: TokenLogprob, top: int) -> dict[str, float] | None:
    """Return the most likely tokens and the chosen one. Of tokens with one text, such as parts of characters,
    the chosen one counts, else the likeliest."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for one in top_of(token, top):
        found.setdefault(one.text, one.logprob)
    return found | {token.text: token.logprob}

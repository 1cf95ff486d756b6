"""Log-probabilities in the two shapes OpenAI has: chat's list of tokens, and completions' parallel lists.

A token that is a part of a character has no text. As OpenAI writes it, chat's `token` is its bytes as escapes
(`\\xe4`), and in completions `bytes:` precedes them, so that the keys of a place differ.

Most engines give the chosen token's log-probability only; a "top" list then has that one token at most.
"""

from __future__ import annotations

import codecs

import msgspec

from ovserve.llm.request import TokenLogprob, TopToken, shown_token

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
        tops = [
            TopLogprob(shown_token(one.text, one.utf8, ""), one.logprob, list(one.utf8))
            for one in top_of(token, top)
        ]
        content.append(
            ChatTokenLogprob(shown_token(token.text, token.utf8, ""), logprob, list(token.utf8), tops)
        )
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Completions' shape for one choice; `top` as above. Chunks continue each other's offsets."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._start = 0  # characters of this choice so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: list[TokenLogprob]) -> CompletionLogprobs:
        offsets = []
        for token in tokens:
            offsets.append(self._start)
            self._start += len(self._decoder.decode(token.utf8))
        tops: list[dict[str, float] | None] | None = None
        if self._top:
            tops = [_top_map(token, self._top) for token in tokens]
        texts = [shown_token(token.text, token.utf8) for token in tokens]
        return CompletionLogprobs(offsets, [t.logprob for t in tokens], texts, tops)


def _top_map(token: TokenLogprob, top: int) -> dict[str, float] | None:
    """Return the most likely tokens and the chosen one. Of tokens with one text, the chosen one counts, else
    the likeliest."""
    if token.logprob is None:
        return None
    logprobs: dict[str, float] = {}
    for one in top_of(token, top):
        logprobs.setdefault(shown_token(one.text, one.utf8), one.logprob)
    return logprobs | {shown_token(token.text, token.utf8): token.logprob}

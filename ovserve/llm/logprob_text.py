"""Rewrites the text of tokens with log-probabilities, so that they show no more than the answer does.

Called by `Parsed.map_text`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

import msgspec

from ovserve.llm.request import TokenLogprob


def map_logprobs(tokens: list[TokenLogprob], change: Callable[[str], str]) -> list[TokenLogprob] | None:
    """Return the tokens with `change` applied to their text; None if no text is left.

    Where `change` does the same to each token as to all of them together, each token keeps its own entry.
    Otherwise it changed text across a border of tokens (a name of two tokens became one mask), and one entry
    takes the place of all, with the log-probability of all. Bytes follow the text, also where they are a part
    of a character only: `change` has not seen that character, so they must not show it.
    """
    runs = list(_runs(tokens))
    mapped = [(change(text), text, run) for text, run in runs]
    whole = change("".join([text for text, _ in runs]))
    if "".join([new for new, _, _ in mapped]) != whole:
        return [_entry(whole, tokens)] if whole else None
    entries: list[TokenLogprob] = []
    for new, text, run in mapped:
        if new == text and all(change(token.text) == token.text for token in run) and "\ufffd" not in text:
            entries += with_top(run, lambda text: change(text) == text)
        elif new:
            entries.append(_entry(new, run))
    return entries or None


def _runs(tokens: list[TokenLogprob]) -> Iterator[tuple[str, list[TokenLogprob]]]:
    """Yield runs of tokens that spell whole characters, with their text. One token may hold half of one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, run = "", []
    for token in tokens:
        text += decoder.decode(token.utf8)
        run.append(token)
        if not decoder.getstate()[0]:
            yield text, run
            text, run = "", []
    if run:
        yield text + decoder.decode(b"", True), run


def with_top(tokens: list[TokenLogprob], is_visible: Callable[[str], bool]) -> list[TokenLogprob]:
    """Return the tokens with those others at their places whose text `is_visible`."""
    return [
        msgspec.structs.replace(token, top=tuple(one for one in token.top if is_visible(one.text)))
        if token.top
        else token
        for token in tokens
    ]


def _entry(text: str, run: list[TokenLogprob]) -> TokenLogprob:
    logprobs = [token.logprob for token in run if token.logprob is not None]
    return TokenLogprob(text, text.encode(), sum(logprobs) if len(logprobs) == len(run) else None)

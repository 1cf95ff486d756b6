"""Reject a prompt that cannot fit by its size alone, in the server, before it is tokenized.

A token of a byte-level vocabulary stands for at most `longest_token` bytes, so a text of more than that times
the context cannot fit. Tokenizing one of several megabytes only to report the excess would take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ovserve.engine.protocol.specs import TextFacts
from ovserve.errors import ContextLengthExceeded
from ovserve.llm.request import Prompt

MAX_CHARACTER_BYTES = 4  # at most, per character


class TooLongUncounted(ContextLengthExceeded):
    """The prompt is too long, and its tokens were deliberately not counted."""


def check_sizes(prompts: Sequence[Prompt], facts: TextFacts) -> None:
    """Check the prompts. Raises ContextLengthExceeded for one that cannot fit."""
    if facts.max_length is None:
        return
    for prompt in prompts:
        if isinstance(prompt, str):
            _check_text(prompt, facts.max_length, facts.longest_token)
        elif len(prompt) >= facts.max_length:
            raise TooLongUncounted(
                f"{_limit(facts.max_length)} The prompt has {len(prompt)} tokens: shorten it by at least "
                f"{len(prompt) - facts.max_length + 1}.",
                param="prompt",
            )


def _check_text(text: str, max_length: int, longest: int) -> None:
    most = (max_length - 1) * longest
    if not longest or len(text) * MAX_CHARACTER_BYTES <= most:
        return
    size = len(text) if len(text) > most else len(text.encode("utf-8", "surrogatepass"))
    if size <= most:
        return
    least = -(-size // longest)
    raise TooLongUncounted(
        f"{_limit(max_length)} The prompt has at least {size} bytes, and no token of this model stands for "
        f"more than {longest}, so it has at least {least} tokens: shorten it by at least "
        f"{least - max_length + 1}.",
        param="prompt",
    )


def _limit(max_length: int) -> str:
    return (
        f"This model's maximum context length is {max_length} tokens, and one of them must be left for the "
        "answer."
    )

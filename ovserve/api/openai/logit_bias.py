"""The field `logit_bias`: OpenAI's object from token ids, as strings, to what is added to their logits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ovserve.errors import InvalidArgument

MAX_BIASES = 1_024
LARGEST = 100

# `$` alone would also match before a newline at the end, and two keys would be one id.
TokenKey = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,8})(?!\n)$")]
LogitBias = Annotated[
    dict[TokenKey, Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]], Meta(max_length=MAX_BIASES)
]


def biases(given: LogitBias | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Return the pairs, sorted by id. `vocab_size` 0: unknown. Raises InvalidArgument."""
    if not given:
        return ()
    pairs = tuple(sorted((int(key), value) for key, value in given.items()))
    last = pairs[-1][0]
    if vocab_size and last >= vocab_size:
        raise InvalidArgument(
            f"logit_bias: token id {last} is not in the vocabulary of {vocab_size}", param="logit_bias"
        )
    return pairs

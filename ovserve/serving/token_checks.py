"""Shared by the token operations of all kinds of model: their result, and the bounds on what they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ovserve.engine.admission.fair_queue import Limits
from ovserve.errors import InvalidArgument


class TokenizeResult(NamedTuple):
    body: bytes
    ignored: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()  # how messages were rearranged for the chat template


def check_size(texts: Sequence[str], limits: Limits, param: str) -> None:
    """Raises InvalidArgument for more text than --max_tokenize_bytes."""
    most = limits.max_tokenize_bytes
    size = sum(map(len, texts))
    if size <= most:
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > most:
        raise InvalidArgument(
            f"{param}: expected at most {most} bytes of text (--max_tokenize_bytes), got at least {size}",
            param=param,
        )


def check_count(rows: Sequence[Sequence[int]], limits: Limits) -> None:
    """Raises InvalidArgument for more ids than --max_detokenize_tokens."""
    count, most = sum(map(len, rows)), limits.max_detokenize_tokens
    if count > most:
        raise InvalidArgument(
            f"tokens: expected at most {most} ids (--max_detokenize_tokens), got {count}", param="tokens"
        )

"""A packet in a few words: its sizes without what a client wrote, and an excerpt of its text for captures."""

from __future__ import annotations

from typing import Any

from ovserve.api.kserve.tensor import Tensor
from ovserve.calculators.payload import HttpPayload, HttpResponse
from ovserve.console.capture import describe
from ovserve.llm.output import Parsed
from ovserve.llm.request import Delta, GenerateRequest

EXCERPT = 300  # characters


def summary(value: Any) -> str:
    """Return the sizes of a packet. It holds nothing of its content."""
    if isinstance(value, HttpPayload):
        return f"{value.endpoint}, {len(value.body)} bytes"
    if isinstance(value, GenerateRequest):
        return _request(value)
    if isinstance(value, Delta):
        return _delta(value)
    if isinstance(value, Parsed):
        return ", ".join(type(part).__name__ for part in value.parts) or "no part"
    if isinstance(value, HttpResponse):
        return f"{len(value.body)} bytes of {value.content_type}"
    if isinstance(value, bytes | str):
        return f"{len(value)} {'bytes' if isinstance(value, bytes) else 'characters'}"
    if isinstance(value, Tensor):
        return f"{value.datatype} {list(value.shape)}"
    return ""


def _request(value: GenerateRequest) -> str:
    tokens = value.sampling.max_tokens
    found = [f"prompt of {len(p)} {'characters' if isinstance(p, str) else 'ids'}" for p in value.prompts[:3]]
    found += [f"{len(value.images)} images"] if value.images else []
    return ", ".join([*found, f"max_tokens {tokens}" if tokens is not None else "max_tokens not set"])


def _delta(value: Delta) -> str:
    found = [f"admission of {value.prompt_tokens} tokens"] if value.prompt_tokens else []
    found += [f"{value.tokens} token{'' if value.tokens == 1 else 's'}"] if value.tokens else []
    return ", ".join([*found, *([value.finish_reason] if value.finish_reason else [])])


def excerpt(value: Any) -> str:
    """Return the beginning of what a person reads of a packet."""
    found = describe(value)
    if "parts" in found:
        return "".join(part.get("text", "") for _, part in found["parts"])[:EXCERPT]
    return str(found.get("text") or " ".join(found.get("prompts", ())))[:EXCERPT]

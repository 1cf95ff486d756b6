"""What the HTTP front puts into a graph and takes out of it; shared by `http/` and the calculators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ovserve.sandbox.bodies import HERE, Head


@dataclass(frozen=True)
class HttpPayload:
    """One HTTP request. Header names are lower case. `head` is what admitting the body has found."""

    endpoint: str  # the path without its version prefix, e.g. "chat/completions"
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    head: Head = HERE


@dataclass(frozen=True)
class HttpResponse:
    """The first packet of an answer: how it begins. With `more`, bytes packets follow it.

    A graph of a third party may also answer with bytes or str alone: 200, application/json.
    """

    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    more: bool = False

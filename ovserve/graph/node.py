"""One node of a graph file with its names taken apart; what `get_contract` receives. Used by `load.py`.

Stream and side packet names are `name`, `TAG:name` or `TAG:index:name` (MediaPipe's rules: names lower
case, tags upper case, an index without leading zeros, dense from 0 within a tag).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ovserve.errors import LoadError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ovserve.graph.config import GraphConfig

    M = TypeVar("M", bound=Message)

_SPEC = re.compile(r"(?:(?P<tag>[A-Z_][A-Z0-9_]*):)?(?:(?P<index>0|[1-9][0-9]*):)?(?P<name>[a-z_][a-z0-9_]*)")
_TAG_INDEX = re.compile(r"(?P<tag>[A-Z_][A-Z0-9_]*)?(?::(?P<index>0|[1-9][0-9]*))?")


@dataclass(frozen=True)
class Endpoint:
    """`TAG:index:name` in pieces; `text` is how the file spells it."""

    tag: str
    index: int
    name: str
    text: str

    @property
    def key(self) -> tuple[str, int]:
        return self.tag, self.index

    @property
    def label(self) -> str:
        return f"{self.tag}:{self.index}" if self.index else self.tag or f":{self.index}"


@dataclass(frozen=True)
class Node:
    """A node as the file has it, ports taken apart."""

    config: GraphConfig
    position: int  # in the file, from 0
    name: str  # the given one, or the calculator's made unique
    calculator: str
    inputs: tuple[Endpoint, ...] = ()
    outputs: tuple[Endpoint, ...] = ()
    side_inputs: tuple[Endpoint, ...] = ()
    side_outputs: tuple[Endpoint, ...] = ()

    def options(self, type_: type[M]) -> M | None:
        return self.config.options(self.position, type_)

    def error(self, message: str, field: str = "", text: str = "") -> LoadError:
        """A LoadError at this node: at the line of `field`, the one with the value `text` if given."""
        line = self.config.line_of(self.position, field, text or None) if field else 0
        return LoadError(
            message,
            file=self.config.file,
            line=line or self.config.line_of_node(self.position),
            node=self.name,
            field=field,
        )


def split_endpoints(texts: list[str]) -> tuple[list[Endpoint], str | None]:
    """Take names apart; the second value says what is wrong with one of them, or is None."""
    out: list[Endpoint] = []
    untagged = 0
    for text in texts:
        match = _SPEC.fullmatch(text)
        if match is None:
            return out, f"{text!r} is not `name`, `TAG:name` or `TAG:index:name`"
        tag, index = match["tag"] or "", match["index"]
        if index is not None:
            number = int(index)
        elif tag:
            number = 0
        else:
            number, untagged = untagged, untagged + 1
        out.append(Endpoint(tag, number, match["name"], text))
    keys = [e.key for e in out]
    for endpoint in out:
        if keys.count(endpoint.key) > 1:
            return out, f"{endpoint.text!r}: {endpoint.label} appears twice (write TAG:0:a, TAG:1:b)"
        if endpoint.index and (endpoint.tag, endpoint.index - 1) not in keys:
            return out, f"{endpoint.text!r}: index {endpoint.index} without index {endpoint.index - 1}"
    return out, None


def split_tag_index(text: str) -> tuple[str, int] | None:
    """`TAG`, `TAG:index`, `:index` or "" (the first untagged) as (tag, index); None if malformed."""
    match = _TAG_INDEX.fullmatch(text)
    return (match["tag"] or "", int(match["index"] or 0)) if match else None

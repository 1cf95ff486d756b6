"""One node of a graph file with its names parsed; the argument of `get_contract`.

Stream and side packet names are `name`, `TAG:name` or `TAG:index:name` (MediaPipe's rules: names lower
case, tags upper case, an index without leading zeros, dense from 0 within a tag).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ovserve.errors import LoadError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ovserve.graph.config import GraphConfig

    M = TypeVar("M", bound=Message)

_SPEC = re.compile(r"(?:(?P<tag>[A-Z_][A-Z0-9_]*):)?(?:(?P<index>0|[1-9][0-9]*):)?(?P<name>[a-z_][a-z0-9_]*)")
_TAG_INDEX = re.compile(r"(?P<tag>[A-Z_][A-Z0-9_]*)?(?::(?P<index>0|[1-9][0-9]*))?")


def label_of(tag: str, index: int) -> str:
    """Return the end of a node as errors and pictures name it."""
    return f"{tag}:{index}" if index or not tag else tag


class Endpoint(msgspec.Struct, frozen=True):
    """`TAG:index:name` in parts; `text` is its spelling in the file."""

    tag: str
    index: int
    name: str
    text: str

    @property
    def key(self) -> tuple[str, int]:
        return self.tag, self.index

    @property
    def label(self) -> str:
        return label_of(self.tag, self.index)


@dataclass(frozen=True)
class Node:
    """A node as written in the file, with its ports parsed."""

    config: GraphConfig
    position: int  # in the file, from 0
    name: str  # the given name, or a unique one made from the calculator's
    calculator: str
    inputs: tuple[Endpoint, ...] = ()
    outputs: tuple[Endpoint, ...] = ()
    side_inputs: tuple[Endpoint, ...] = ()
    side_outputs: tuple[Endpoint, ...] = ()

    def options(self, type_: type[M]) -> M | None:
        return self.config.options(self.position, type_)

    def required_options(self, type_: type[M]) -> M:
        """Raises LoadError for a node without them."""
        if (options := self.options(type_)) is None:
            raise self.error(f"required: node_options with {type_.DESCRIPTOR.full_name}", "node_options")
        return options

    def error(self, message: str, field: str = "", text: str = "", offset: int = -1) -> LoadError:
        """Return a LoadError at this node: at the line of `field`, the one with the value `text` if given."""
        position, name = self.position, self.name
        return self.config.error(message, position, field, text or None, name=name, offset=offset)


def split_endpoints(texts: list[str]) -> tuple[list[Endpoint], str | None]:
    """Parse names. The second value is the error of the first malformed one, or None."""
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
    """Parse `TAG`, `TAG:index`, `:index` or "" (the first untagged) into (tag, index); None if malformed."""
    match = _TAG_INDEX.fullmatch(text)
    return (match["tag"] or "", int(match["index"] or 0)) if match else None

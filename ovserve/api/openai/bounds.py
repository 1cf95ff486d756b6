"""Bounds on one JSON body: values, properties, tools, messages, tensors.

The time that a body costs grows with the number of its JSON values, not with its bytes: a picture of 10 MB is
one value. A `,`, `{` or `[` precedes every value but the first of an array or object. So those three bytes,
counted outside of strings, are the number of values to within a factor of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ovserve.api.openai.body import decode_fields, structure_bytes, without_images
from ovserve.errors import InvalidArgument

# Fields that hold the data of a request. All others are parameters, which stay in the server as they are.
TEXT_PAIRS = ("text_1", "text_2", "data_1", "data_2", "queries", "items")  # of a score
DATA = ("messages", "input", "prompt", "tokens", "inputs", "instances", "system", *TEXT_PAIRS)
# Which fields are lists that an option bounds.
LISTS = {
    "max_tools": ("tools",),
    "max_messages": ("messages", "input", "text", "tokens", *TEXT_PAIRS),
    "max_tensors": ("inputs", "outputs"),
}
SLICE = 1 << 20

_items = msgspec.json.Decoder(list[msgspec.Raw])
_STRUCTURE = b',{["'
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))


@dataclass(frozen=True)
class BodyBounds:
    """Each is the largest number accepted, and the option of the same name sets it."""

    max_json_nodes: int = 1_000_000
    max_properties: int = 20_000
    max_tools: int = 1_024
    max_messages: int = 10_000
    max_tensors: int = 1_024

    @property
    def smallest(self) -> int:
        """A body of so few bytes keeps every bound."""
        return min(
            self.max_json_nodes, self.max_properties, self.max_tools, self.max_messages, self.max_tensors
        )


DEFAULT_BOUNDS = BodyBounds()


def count_nodes(body: bytes, enough: int) -> int:
    """The number of `,`, `{` and `[` outside of strings; some number above `enough` when there are more."""
    if structure_bytes(body) <= enough:
        return structure_bytes(body)  # with those inside of strings, and still few
    # Without escaped backslashes every backslash that is left escapes what follows it.
    text = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    nodes, outside = 0, True
    for at in range(0, len(text), SLICE):  # a slice at a time: the pieces of all of it take a gigabyte
        pieces = text[at : at + SLICE].split(b'"')
        nodes += sum(map(len, pieces[0 if outside else 1 :: 2]))
        outside ^= len(pieces) % 2 == 0
        if nodes > enough:
            break
    return nodes


def check_bounds(body: bytes, bounds: BodyBounds) -> None:
    """Raises InvalidArgument that names the bound and both numbers, or the key that occurs twice."""
    text = without_images(body)
    if structure_bytes(text) <= bounds.smallest:
        return
    nodes = count_nodes(text, bounds.max_json_nodes)
    if nodes > bounds.max_json_nodes:
        raise over(
            "body", f"more than {bounds.max_json_nodes} JSON values", bounds.max_json_nodes, "json_nodes"
        )
    try:
        fields = decode_fields(body)
    except InvalidArgument:
        return  # the decoder of its endpoint says what is wrong
    _check_lengths(fields, bounds)  # first: they name what there is too much of
    _check_parameters(fields, bounds)


def _check_parameters(fields: dict[str, msgspec.Raw], bounds: BodyBounds) -> None:
    limit = bounds.max_properties
    total, worst, most = 0, "", -1
    for name, raw in fields.items():
        if name in DATA:
            continue
        value = bytes(raw)
        if name == "text" and not value.startswith(b"{"):  # an object of options in responses, else data
            continue
        here = 1 + count_nodes(value, limit)
        total += here
        if here > most:
            worst, most = name, here
    if total <= limit:
        return
    if most <= limit // 2:
        raise over("body", f"{len(fields)} fields", limit, "properties")
    raise over(_short(worst), f"{total} JSON values besides the data of the request", limit, "properties")


def _check_lengths(fields: dict[str, msgspec.Raw], bounds: BodyBounds) -> None:
    for option, names in LISTS.items():
        limit = getattr(bounds, option)
        for name in names:
            raw = bytes(fields.get(name, b""))
            if len(raw) > limit and raw.startswith(b"[") and (length := _length(name, raw)) > limit:
                raise over(name, f"{length} elements", limit, option.removeprefix("max_"))


def _length(name: str, raw: bytes) -> int:
    if name == "tokens":  # ids, which cost next to nothing, or rows of ids
        return raw.count(b"[") - 1
    return len(_items.decode(raw))


def over(param: str, amount: str, limit: int, option: str) -> InvalidArgument:
    """The error for a request past the bound of an option; `param` is "body" where no field is to blame."""
    return InvalidArgument(
        f"{param}: got {amount}, and the server accepts at most {limit} (--max_{option})",
        param=None if param == "body" else param,
    )


def _short(name: str) -> str:
    return name if len(name) <= 64 else name[:64] + "..."


__all__ = ["DEFAULT_BOUNDS", "BodyBounds", "check_bounds", "count_nodes", "over"]

"""The struct's type at one place of a body. Used by `body.py`.

It is read when a body does not fit the type, and to find fields that the type does not have.

msgspec names the path of a fault, but not the values that a Literal allows. It has no integer for `5.0`,
which some clients write because their language knows floats only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec.inspect import (
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    Metadata,
    StructType,
    Type,
    UnionType,
    type_info,
)

Step = str | int  # a member's name, or an index
MOST_INNER = 100  # kinds of unknown fields within a body that are noted; a body may have 300,000


class _Kinds(NamedTuple):
    """The alternatives that a type allows; the JSON itself shows which of them it is."""

    whole: bool  # an integer, and no float
    literals: tuple[Any, ...]
    items: Type | None
    values: Type | None
    fields: Mapping[str, Type]
    closed: bool  # an object has the fields of a struct, and no others


class _Inner(NamedTuple):
    """A place in a type that has structs in it, which are searched for unknown fields."""

    names: frozenset[str] | None  # of the struct, if it is one
    fields: Mapping[str, _Inner]
    items: _Inner | None
    values: _Inner | None


class Shape:
    """The type of a body; made by `shape_of`."""

    def __init__(self, type_: Any) -> None:
        self._root = type_info(type_)
        self._kinds: dict[int, _Kinds] = {}
        self._inner: dict[int, _Inner | None] = {}

    def choices_at(self, steps: Sequence[Step]) -> tuple[Any, ...]:
        """The values that a Literal at this place allows; empty without a Literal."""
        at: Type | None = self._root
        for step in steps:
            if at is None:
                return ()
            kinds = self._of(at)
            at = kinds.items if isinstance(step, int) else kinds.fields.get(step, kinds.values)
        return () if at is None else self._of(at).literals

    def with_whole_numbers(self, value: Any) -> Any:
        """The decoded body with each float like 5.0 made an integer where the type wants one. Changes
        `value`."""
        return self._whole(value, self._root)

    def unknown(self, members: dict[str, Any]) -> tuple[list[str], list[str]]:
        """The names at the top of a decoded body that the type does not have, and the paths of unknown fields
        within it, MOST_INNER at most. Of several like `messages[0].odd` and `messages[1].odd` only the first
        is there, and none whose value asks for nothing: null, [] and {}."""
        inner = self._places(self._root)
        assert inner is not None, "the type of a body is a struct"
        assert inner.names is not None
        unknown_paths: dict[tuple[Step, ...], str] = {}
        for name, place in inner.fields.items():
            if (value := members.get(name)) is not None:
                _search(value, place, name, (name,), unknown_paths)
        return [name for name in members if name not in inner.names], list(unknown_paths.values())

    def _places(self, type_: Type) -> _Inner | None:
        """Return None where there is no struct to look at. One that has itself inside is looked at once."""
        key = id(type_)
        if key in self._inner:
            return self._inner[key]
        self._inner[key] = None
        kinds = self._of(type_)
        fields = {
            name: place for name, field in kinds.fields.items() if (place := self._places(field)) is not None
        }
        items = None if kinds.items is None else self._places(kinds.items)
        values = None if kinds.values is None else self._places(kinds.values)
        if kinds.closed or items is not None or values is not None:
            names = frozenset(kinds.fields) if kinds.closed else None
            self._inner[key] = _Inner(names, fields if kinds.closed else {}, items, values)
        return self._inner[key]

    def _whole(self, value: Any, type_: Type) -> Any:
        kinds = self._of(type_)
        if isinstance(value, float):
            return int(value) if kinds.whole and value.is_integer() else value
        if isinstance(value, list) and kinds.items is not None:
            value[:] = [self._whole(item, kinds.items) for item in value]
        elif isinstance(value, dict):
            for name in kinds.fields.keys() & value.keys():
                value[name] = self._whole(value[name], kinds.fields[name])
            if kinds.values is not None:
                value.update({name: self._whole(item, kinds.values) for name, item in value.items()})
        return value

    def _of(self, type_: Type) -> _Kinds:
        kinds = self._kinds.get(id(type_))  # the types live as long as the root
        if kinds is None:
            kinds = self._kinds[id(type_)] = _kinds(list(_options(type_)))
        return kinds


@cache
def shape_of(type_: Any) -> Shape:
    return Shape(type_)


def _options(type_: Type) -> Iterator[Type]:
    if isinstance(type_, Metadata):
        yield from _options(type_.type)
    elif isinstance(type_, UnionType):
        for one in type_.types:
            yield from _options(one)
    else:
        yield type_


def _kinds(options: list[Type]) -> _Kinds:
    items = [one.item_type for one in options if isinstance(one, ListType)]
    values = [one.value_type for one in options if isinstance(one, DictType)]
    fields = [one.fields for one in options if isinstance(one, StructType)]
    return _Kinds(
        whole=any(isinstance(o, IntType) for o in options)
        and not any(isinstance(o, FloatType) for o in options),
        literals=tuple(v for o in options if isinstance(o, LiteralType) for v in o.values),
        items=items[0] if items else None,
        values=values[0] if values else None,
        fields={field.encode_name: field.type for one in fields[:1] for field in one},
        closed=len(fields) == 1 and not values,
    )


def _search(
    value: Any, place: _Inner, path: str, kind: tuple[Step, ...], unknown_paths: dict[tuple[Step, ...], str]
) -> None:
    """Note in `unknown_paths` the unknown fields in a value, by their kind: the path without indices."""
    if isinstance(value, dict):
        if place.names is not None and not place.names.issuperset(value):
            for name in value.keys() - place.names:
                if value[name] not in (None, [], {}) and len(unknown_paths) < MOST_INNER:
                    unknown_paths.setdefault((*kind, name), f"{path}.{name}")
        for name, inner in place.fields.items():
            if (member := value.get(name)) is not None:
                _search(member, inner, f"{path}.{name}", (*kind, name), unknown_paths)
        if place.values is not None:
            for name, member in value.items():
                _search(member, place.values, f"{path}.{name}", (*kind, ""), unknown_paths)
    elif isinstance(value, list) and place.items is not None:
        for i, item in enumerate(value):
            _search(item, place.items, f"{path}[{i}]", (*kind, 0), unknown_paths)

"""Conjunctions of subschemas: `$ref` and `allOf` resolved to the plain schemas that an instance must match.

A conjunction keeps the client's own objects and never copies them. So the same parts are the same
conjunction, recursion ends at a known one, and a reference used a million times costs one rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.grammar.rules import Rules

Schema = Mapping[str, Any]
MAX_NAMED = 20  # keywords in one report
_LOGIC = frozenset(("$ref", "allOf", "anyOf", "oneOf"))


class Conjunction(msgspec.Struct, frozen=True, eq=False):
    plain: tuple[Schema, ...]  # their own keywords count, without references, allOf and unions
    unions: tuple[list[Any], ...] = ()  # of each, one branch holds

    @property
    def key(self) -> tuple[frozenset[int], tuple[int, ...]]:
        return frozenset(map(id, self.plain)), tuple(map(id, self.unions))


class Document:
    """The schema that references point into, and the keywords that the grammar leaves out."""

    def __init__(self, root: Any, rules: Rules, what: str) -> None:
        self._root, self._rules, self._what = root, rules, what
        self._targets: dict[str, Any] = {}
        self._anchors: dict[str, Any] | None = None
        self.one_of: dict[int, Schema] = {}  # by identity of the branches
        self._reported: dict[tuple[int, str], Schema] = {}

    @property
    def reported(self) -> list[str]:
        paths = self._paths({id(node) for node in self._reported.values()})
        return [f"{paths.get(id(node), '')}{keyword}" for (_, keyword), node in self._reported.items()]

    def report(self, node: Schema, keyword: str) -> None:
        """Record that this keyword of this schema is not enforced."""
        if len(self._reported) < MAX_NAMED and (id(node), keyword) not in self._reported:
            self._reported[id(node), keyword] = node

    def fault(self, node: Any, keyword: str, why: str, *shown: Any) -> InvalidArgument:
        got = f", got {_show(shown[0])}" if shown else ""
        return InvalidArgument(f"{self._what}: {self._path(node)}{keyword}: {why}{got}", param=self._what)

    def conjunction(self, *schemas: Any) -> Conjunction | None:
        """Return the conjunction of all; None if no value is valid. Raises InvalidArgument for an invalid
        schema."""
        plain: dict[int, Schema] = {}
        unions: dict[int, list[Any]] = {}
        todo = list(reversed(schemas))
        seen: set[int] = set()
        open_ = not todo
        while todo:
            node = todo.pop()
            self._rules.spend()
            if node is False:
                return None
            if node is True:
                open_ = True
            if node is True or id(node) in seen:
                continue
            if not isinstance(node, Mapping):
                raise InvalidArgument(
                    f"{self._what}: expected a schema, an object or a boolean, got {_show(node)}",
                    param=self._what,
                )
            seen.add(id(node))
            if "$ref" in node:
                todo.append(self._target(node))
            todo += reversed(self._branches(node, "allOf"))
            for union in ("anyOf", "oneOf"):
                if union in node:
                    branches = self._branches(node, union)
                    unions[id(branches)] = branches
                    if union == "oneOf":
                        self.one_of[id(branches)] = node
            if node.keys() - _LOGIC:
                plain[id(node)] = node
            open_ = open_ or not node
        if not (plain or unions or open_):
            raise self.fault(schemas[0], "$ref", "refers to nothing but itself")
        return Conjunction(tuple(plain.values()), tuple(unions.values()))

    def branch(self, of: Conjunction, branch: Any) -> Conjunction | None:
        """Return it with one branch of its first union."""
        found = self.conjunction(branch)
        if found is None:
            return None
        plain = {id(node): node for node in (*of.plain, *found.plain)}
        unions = {id(union): union for union in (*of.unions[1:], *found.unions)}
        self._rules.spend(len(plain) + len(unions))
        return Conjunction(tuple(plain.values()), tuple(unions.values()))

    def _branches(self, node: Schema, keyword: str) -> list[Any]:
        if keyword not in node:
            return []
        found = node[keyword]
        if not isinstance(found, list) or not found:
            raise self.fault(node, keyword, "expected a non-empty array", found)
        return found

    def _target(self, node: Schema) -> Any:
        """Return the target of `$ref`; a schema for anything if that is another document."""
        ref = node["$ref"]
        if not isinstance(ref, str):
            raise self.fault(node, "$ref", "expected a string", ref)
        base, sharp, pointer = ref.partition("#")
        own = self._root.get("$id") if isinstance(self._root, Mapping) else None
        if (base and base != own) or not (sharp or base):
            self.report(node, "$ref")
            return True
        if pointer and not pointer.startswith("/"):
            found = self._anchor(pointer)
            if found is None:
                self.report(node, "$ref")
            return True if found is None else found
        if pointer not in self._targets:
            self._targets[pointer] = self._at(node, pointer)
        return self._targets[pointer]

    def _at(self, node: Schema, pointer: str) -> Any:
        self._rules.spend(pointer.count("/"))
        found = pointed_at(self._root, "#" + pointer)
        if not isinstance(found, Mapping | bool):
            raise self.fault(node, "$ref", "points to no schema", node["$ref"])
        return found

    def _anchor(self, name: str) -> Any:
        if self._anchors is None:
            self._anchors = {}
            for node, _ in self._nodes():
                self._rules.spend()
                anchor = node.get("$anchor")
                if isinstance(anchor, str):
                    self._anchors.setdefault(anchor, node)
        return self._anchors.get(name)

    def _path(self, wanted: Any) -> str:
        """Return its path, with a dot at the end."""
        return self._paths({id(wanted)}).get(id(wanted), "")

    def _paths(self, wanted: set[int]) -> dict[int, str]:
        """Return the paths of these, by identity; found by a search, because they are rarely needed."""
        found: dict[int, str] = {}
        for node, trail in self._nodes() if wanted else ():
            if id(node) in wanted and id(node) not in found:
                found[id(node)] = _dotted(trail)
                if len(found) == len(wanted):
                    break
        return found

    def _nodes(self) -> Iterator[tuple[Schema, Any]]:
        todo: list[tuple[Any, Any]] = [(self._root, None)]
        while todo:
            node, trail = todo.pop()
            if isinstance(node, Mapping):
                yield node, trail
                todo += [
                    (one, (trail, str(key))) for key, one in node.items() if isinstance(one, Mapping | list)
                ]
            elif isinstance(node, list):
                todo += [
                    (one, (trail, f"[{i}]")) for i, one in enumerate(node) if isinstance(one, Mapping | list)
                ]


def _dotted(trail: Any) -> str:
    steps: list[str] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    path = "".join(step if step.startswith("[") else f"{step}." for step in reversed(steps))
    return path.replace(".[", "[").replace("]", "].")


def pointed_at(root: Any, ref: str) -> Any:
    """Return the target of a reference with a JSON pointer (`#/$defs/a~1b`); None if there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found = root
    for step in unquote(ref[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and len(step) < 9 and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def _show(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        text = type(value).__name__
    return shortened(text)

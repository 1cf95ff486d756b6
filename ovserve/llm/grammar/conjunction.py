"""Conjunctions of subschemas: `$ref` and `allOf` resolved to the plain schemas that an instance must match.

`not`, `if` and the dependent keywords become unions here (conditions.py). The writer makes the branches of a
`oneOf` exclude each other.

A conjunction keeps the client's own objects and never copies them. So the same parts are the same
conjunction, recursion ends at a known one, and a reference used a million times costs one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import unquote, urljoin

import msgspec

from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.grammar.rules import Rules

Schema = Mapping[str, Any]
MAX_NAMED = 20  # keywords in one report
MAX_ORDER_DEPTH = 8  # of schemas within each other whose properties are put in order
MAX_ORDERED = 500  # of such schemas
OWN_SCHEMA_STEPS = 4  # steps that a schema of our own takes
IDENTIFIER_STEPS = 2  # steps that a schema takes when identifiers are looked for
MAX_WAYS = 64  # branches that the conditions of one conjunction make, multiplied
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
CONDITIONS = frozenset(("not", "if", "dependentRequired", "dependentSchemas", "dependencies"))
UNIONS = ("anyOf", "oneOf")
_LOGIC = frozenset((*REFERENCES, "allOf", *UNIONS))
# Keywords that exclude no value by themselves.
_ASIDE = frozenset(("title", "description", "default", "examples", "$schema", "$id", "$defs", "definitions"))
# Keywords that a draft does not have: a schema that names the draft may use them for something else.
_NEW_IN_6 = frozenset(("const", "contains", "propertyNames"))
_NEW_IN_7 = frozenset(("if", "then", "else"))
_NONE: frozenset[str] = frozenset()
_UNKNOWN = {"draft-03": _NEW_IN_6 | _NEW_IN_7, "draft-04": _NEW_IN_6 | _NEW_IN_7, "draft-06": _NEW_IN_7}
_UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))
_NULL_IS_A_VALUE = frozenset(("const", "default", "example", "type"))  # `type: null` may mean the type
_MAPS = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependentRequired", "dependencies")
)


class Conjunction(msgspec.Struct, frozen=True, eq=False):
    plain: tuple[Schema, ...]  # their own keywords count, without references, allOf and unions
    unions: tuple[list[Any], ...] = ()  # of each, one branch holds
    scopes: frozenset[tuple[int, int]] = frozenset()  # ids: schema with an unevaluated keyword, member in it
    ways: int = 1  # how many branches conditions have made so far
    complete: bool = True  # False: a reference or condition was left out
    chosen: bool = False  # it is a branch of a union, so another one may hold where it cannot
    sources: tuple[Any, ...] = ()  # the schemas that it was made of, before branches were chosen

    @property
    def key(self) -> tuple[frozenset[int], tuple[int, ...], frozenset[tuple[int, int]], bool]:
        return frozenset(map(id, self.plain)), tuple(map(id, self.unions)), self.scopes, self.chosen

    def evaluated_by(self, node: Schema) -> list[Schema]:
        """Return the plain schemas whose evaluations count for the unevaluated keywords of `node`."""
        return [one for one in self.plain if one is node or (id(node), id(one)) in self.scopes]


class Negations(Protocol):
    """The alternatives that conditions become: `conditions.Alternatives`."""

    def is_aside(self, node: Schema) -> bool: ...
    def with_overlaps(self, branches: list[Any], origin: Schema) -> list[Any]: ...
    def of(self, node: Schema, *, evaluates: bool) -> list[tuple[str, list[Any] | None]]: ...
    def negation(self, schema: Any) -> list[Any] | None: ...
    def exact_negation(self, schema: Any) -> list[Any] | None: ...


class Document:
    """The schema that references point into, and the keywords that the grammar leaves out."""

    def __init__(
        self, root: Any, rules: Rules, what: str, conditions: bool, negations: Callable[[Document], Negations]
    ) -> None:
        self.conditions = conditions  # whether they are enforced
        self._root, self._rules, self._what = root, rules, what
        self._resources: _Resources | None = None
        draft = self._root.get("$schema") if isinstance(self._root, Mapping) else None
        names = [name for name in _UNKNOWN if isinstance(draft, str) and f"/{name}/" in draft]
        self._draft, self._unknown = (names[0], _UNKNOWN[names[0]]) if names else ("", _NONE)
        self.one_of: dict[int, Schema] = {}  # by identity of the branches
        self._reported: dict[tuple[int, str], Schema] = {}
        self._cleaned: dict[int, tuple[Schema, Schema]] = {}  # by identity of the original
        # Of schemas that are not the client's own: the schema and keyword that they stand for.
        self._origins: dict[int, tuple[Schema, str]] = {}
        self._kept: list[Schema] = []
        self._orders: dict[tuple[int, ...], tuple[tuple[Any, ...], dict[str, int]]] = {}
        self._is_quiet = 0
        self.alternatives = negations(self)

    @property
    def reported(self) -> list[str]:
        paths = self._paths({id(node) for node in self._reported.values()})
        return [f"{paths.get(id(node), '')}{keyword}" for (_, keyword), node in self._reported.items()]

    def report(self, node: Schema, keyword: str) -> None:
        """Record that this keyword of this schema is not enforced."""
        if self._is_quiet:
            return
        origin, instead = self._origins.get(id(node), (node, ""))
        keyword = instead or keyword
        if len(self._reported) < MAX_NAMED and (id(origin), keyword) not in self._reported:
            self._reported[id(origin), keyword] = origin

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Report nothing inside, where schemas are compared and not written."""
        self._is_quiet += 1
        try:
            yield
        finally:
            self._is_quiet -= 1

    def fault(self, node: Any, keyword: str, why: str, *values: Any) -> InvalidArgument:
        suffix = f", got {show(values[0])}" if values else ""
        origin, instead = self._origins.get(id(node), (node, ""))
        path = self._paths({id(origin)}).get(id(origin), "")
        return InvalidArgument(f"{self._what}: {path}{instead or keyword}: {why}{suffix}", param=self._what)

    def assertions(self, conjunction: Conjunction) -> list[str]:
        """Return the paths of its union, or if it has none, of the keywords of its schemas."""
        pairs: list[tuple[Schema, str]] = []
        for first in conjunction.unions[0][:1] if conjunction.unions else ():
            for node, _ in self._nodes():
                pairs += [(node, union) for union in UNIONS if (node.get(union) or [None])[0] is first]
            pairs = pairs[:1] or [self._origins.get(id(first), (first, ""))]
        for node in conjunction.plain if not pairs else ():
            origin, instead = self._origins.get(id(node), (node, ""))
            pairs += [(origin, instead or keyword) for keyword in node if keyword not in _ASIDE]
        paths = self._paths({id(node) for node, _ in pairs})
        return [*dict.fromkeys(f"{paths.get(id(node), '')}{keyword}" for node, keyword in pairs)][:MAX_NAMED]

    def derive(self, schema: Schema, origin: Schema, keyword: str = "") -> Schema:
        """Register and keep a schema that stands for a part of the client's, which reports name instead."""
        self._rules.spend(OWN_SCHEMA_STEPS)
        source, instead = self._origins.get(id(origin), (origin, ""))
        self._origins[id(schema)] = source, instead or keyword
        self._kept.append(schema)
        return schema

    def cleaned(self, node: Schema) -> Schema:
        """Return the schema without keywords that are null, and with `{}` for the empty lists of PHP."""
        entry = self._cleaned.get(id(node))
        if entry is None:
            entry = self._cleaned[id(node)] = node, self._clean(node)
        return entry[1]

    def _clean(self, node: Schema) -> Schema:
        self._rules.spend()
        maps = _MAPS & node.keys()
        unknown = self._unknown and self._unknown & node.keys()
        if unknown and id(node) in self._origins:  # our own schemas are of the latest draft
            unknown = _NONE
        if not maps and not unknown and None not in node.values():
            return node
        for keyword in sorted(unknown):
            self._rules.noted[f"{keyword}: not in {self._draft}"] = None
        supported = {
            k: v for k, v in node.items() if k not in unknown and (v is not None or k in _NULL_IS_A_VALUE)
        }
        for keyword in maps & supported.keys():
            value = supported[keyword]
            if isinstance(value, Mapping) and None in value.values():
                supported[keyword] = {name: part for name, part in value.items() if part is not None}
            elif value == []:
                supported[keyword] = {}
        changed = len(supported) < len(node) or any(
            supported[keyword] is not node[keyword] for keyword in maps & supported.keys()
        )
        return self.derive(supported, node) if changed else node

    def conjunction(
        self, *schemas: Any, owners: frozenset[int] = frozenset(), ways: int = 1, conditions: bool = True
    ) -> Conjunction | None:
        """Return the conjunction of all; None if no value is valid. Raises InvalidArgument for an invalid
        schema. `owners`: see `Conjunction.scopes`. `conditions` False: they stay keywords of schemas."""
        walk = _Walk(ways, conditions)
        walk.todo = [(schema, owners) for schema in reversed(schemas)]
        open_ = not schemas
        while walk.todo:
            node, around = walk.todo.pop()
            self._rules.spend()
            if node is False:
                return None
            if node is True or node == []:
                open_ = True
                continue
            if not isinstance(node, Mapping):
                raise InvalidArgument(
                    f"{self._what}: expected a schema, an object or a boolean, got {show(node)}",
                    param=self._what,
                )
            node = self.cleaned(node)
            if (id(node), around) not in walk.seen:
                walk.seen.add((id(node), around))
                self._visit(walk, node, around)
            open_ = open_ or not node or node == {"allOf": []}
        if not (walk.plain or walk.unions or open_):
            raise self.fault(schemas[0], "$ref", "refers to nothing but itself")
        return Conjunction(
            tuple(walk.plain.values()),
            tuple(walk.unions.values()),
            frozenset(walk.scopes),
            walk.ways,
            walk.complete,
            sources=schemas,
        )

    def _visit(self, walk: _Walk, node: Schema, owners: frozenset[int]) -> None:
        if self.alternatives.is_aside(node):  # a negated schema evaluates nothing
            owners = frozenset()
        inner = owners | {id(node)} if node.keys() & _UNEVALUATED else owners
        for keyword in REFERENCES:
            if keyword in node:
                target = self._target(node, keyword)
                if target is None:
                    self.report(node, keyword)
                    walk.complete = False
                walk.todo.append((True if target is None else target, inner))
        walk.todo += [(part, inner) for part in reversed(self._branches(node, "allOf"))]
        for union in UNIONS:
            if union in node:
                branches = self._branches(node, union)
                if inner and union == "anyOf":
                    branches = self.alternatives.with_overlaps(branches, node)
                walk.unite(branches, inner)
                if union == "oneOf":
                    self.one_of[id(branches)] = node
        if walk.conditions and node.keys() & CONDITIONS:
            self._condition(walk, node, inner)
        if node.keys() - _LOGIC:
            walk.plain[id(node)] = node
            walk.scopes.update((owner, id(node)) for owner in owners)

    def _condition(self, walk: _Walk, node: Schema, owners: frozenset[int]) -> None:
        for keyword, branches in self.alternatives.of(node, evaluates=bool(owners)):
            if branches is None or not self.conditions or walk.ways * len(branches) > MAX_WAYS:
                self.report(node, keyword)
                walk.complete = False
            elif len(branches) == 1:
                walk.todo.append((branches[0], owners))
            else:
                walk.ways *= max(len(branches), 1)
                walk.unite(branches, owners)

    def both(self, one: Conjunction, other: Conjunction) -> Conjunction:
        plain = {id(node): node for node in (*one.plain, *other.plain)}
        unions = {id(union): union for union in (*one.unions, *other.unions)}
        self._rules.spend(len(plain) + len(unions))
        return Conjunction(
            tuple(plain.values()),
            tuple(unions.values()),
            one.scopes | other.scopes,
            ways=one.ways,
            chosen=True,
        )

    def branch(self, of: Conjunction, branch: Any) -> Conjunction | None:
        """Return it with one branch of its first union."""
        union = id(of.unions[0])
        owners = frozenset(owner for owner, member in of.scopes if member == union)
        extra = self.conjunction(branch, owners=owners, ways=of.ways)
        if extra is None:
            return None
        plain = {id(node): node for node in (*of.plain, *extra.plain)}
        unions = {id(union): union for union in (*of.unions[1:], *extra.unions)}
        scopes = frozenset(pair for pair in of.scopes if pair[1] != union) | extra.scopes
        self._rules.spend(len(plain) + len(unions) + len(scopes))
        complete = of.complete and extra.complete
        return Conjunction(
            tuple(plain.values()), tuple(unions.values()), scopes, extra.ways, complete, True, of.sources
        )

    def order(self, sources: tuple[Any, ...]) -> dict[str, int]:
        """Return the places of properties in the order of the schemas, branches of unions included."""
        key = tuple(map(id, sources))
        entry = self._orders.get(key)
        if entry is None:
            names: dict[str, int] = {}
            self._add_names(sources, names, set(), MAX_ORDER_DEPTH)
            entry = self._orders[key] = sources, names
        return entry[1]

    def _add_names(self, schemas: Iterable[Any], names: dict[str, int], ids: set[int], depth: int) -> None:
        for schema in schemas:
            if not isinstance(schema, Mapping) or id(schema) in ids or not depth or len(ids) > MAX_ORDERED:
                continue
            ids.add(id(schema))
            node = self.cleaned(schema)
            if isinstance(node.get("$ref"), str):
                self._add_names((self._target(node, "$ref"),), names, ids, depth - 1)
            own = node.get("properties")
            for name in own if isinstance(own, Mapping) else ():
                names.setdefault(name, len(names))
            self._rules.spend(len(own) // 8 + 1 if isinstance(own, Mapping) else 1)
            for union in ("allOf", "anyOf", "oneOf"):
                self._add_names(self._branches(node, union), names, ids, depth - 1)

    def _branches(self, node: Schema, keyword: str) -> list[Any]:
        branches = node.get(keyword)
        if branches is None or (branches == [] and keyword == "allOf"):
            return []
        if not isinstance(branches, list) or not branches:
            raise self.fault(node, keyword, "expected a non-empty array", branches)
        return branches

    def _target(self, node: Schema, keyword: str) -> Any:
        """Return what a reference refers to; None if that is another document, an unknown anchor, or known
        only where the instance is."""
        ref = node[keyword]
        if not isinstance(ref, str):
            raise self.fault(node, keyword, "expected a string", ref)
        if self._resources is None:
            self._resources = _Resources(self._root, self._rules)
        origin = self._origins[id(node)][0] if id(node) in self._origins else node
        target = self._resources.target(origin, ref)
        if keyword != "$ref":
            target = self._resources.outermost(target, ref)
        if target is _NO_SCHEMA:
            raise self.fault(node, keyword, "points to no schema", ref)
        return target

    def _paths(self, ids: set[int]) -> dict[int, str]:
        """Return the paths of these, with a dot at the end, by identity. They are rarely needed."""
        paths: dict[int, str] = {}
        for node, trail in self._nodes() if ids else ():
            if id(node) in ids and id(node) not in paths:
                paths[id(node)] = _dotted(trail)
                if len(paths) == len(ids):
                    break
        return paths

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


class _Resources:
    """The schemas of a document that have an identifier of their own, in which references are resolved."""

    def __init__(self, root: Any, rules: Rules) -> None:
        self._root, self._rules = root, rules
        self._targets: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}  # by identity of the schema, where it is not that of the root
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._dynamic: dict[str, list[Schema]] = {}  # by anchor; "": `$recursiveAnchor`
        self._by_uri: dict[str, Any] = {}
        todo: list[tuple[Any, str]] = [(root, "")]
        while todo:
            node, base = todo.pop()
            rules.spend(IDENTIFIER_STEPS)
            if isinstance(node, dict):
                base = self._enter(node, base)
            inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
            todo += [(one, base) for one in inner if isinstance(one, dict | list)]

    def _enter(self, node: Schema, base: str) -> str:
        name = node.get("$id", node.get("id"))
        if isinstance(name, str) and not name.startswith("#"):
            base = _joined(base, name).rstrip("#")
            self._by_uri.setdefault(base, node)
        if base:
            self._bases[id(node)] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(keyword), str):
                self._anchors.setdefault((base, anchor), node)
        if (anchor := _dynamic_anchor(node)) is not None:
            self._dynamic.setdefault(anchor, []).append(node)
        return base

    def outermost(self, target: Any, ref: str) -> Any:
        """Return what a dynamic reference to this target refers to: the outermost schema with its anchor.

        None where that depends on the references that lead there. The document is outside of all.
        """
        anchor = _dynamic_anchor(target)
        if anchor is None or (anchor and not ref.endswith(f"#{anchor}")):
            return target
        some, outer = self._dynamic[anchor], self._bases.get(id(self._root), "")
        inside = [node for node in some if self._bases.get(id(node), "") == outer]
        if not anchor and len(some) < len(self._by_uri) + (not outer):
            inside = []  # the search outwards ends at a schema without the anchor
        return inside[0] if inside else target if len(some) == 1 else None

    def target(self, node: Schema, ref: str) -> Any:
        """Return a schema, None if it is not here, or _NO_SCHEMA."""
        key = self._bases.get(id(node), ""), ref
        if key not in self._targets:
            self._targets[key] = self._target(*key)
        return self._targets[key]

    def _target(self, base: str, ref: str) -> Any:
        self._rules.spend(ref.count("/"))
        uri, _, pointer = _joined(base, ref).partition("#")
        if uri and uri not in self._by_uri:
            return None
        inside = self._by_uri.get(uri, self._root)
        if pointer and not pointer.startswith("/"):
            return self._anchors.get((uri, unquote(pointer)))
        target = pointed_at(inside, f"#{pointer}")
        if not isinstance(target, Mapping | bool) and ref.startswith("#"):
            target = pointed_at(self._root, f"#{pointer}")  # of generators that give every part an `$id`
        return target if isinstance(target, Mapping | bool) else _NO_SCHEMA


_NO_SCHEMA = object()


def _dynamic_anchor(node: Any) -> str | None:
    """Return the name under which dynamic references find the schema; None if they do not."""
    if not isinstance(node, Mapping):
        return None
    name = "" if node.get("$recursiveAnchor") is True else node.get("$dynamicAnchor")
    return name if isinstance(name, str) else None


def _joined(base: str, ref: str) -> str:
    return base + ref if ref.startswith("#") or not ref else urljoin(base, ref)


class _Walk:
    """One conjunction under construction."""

    def __init__(self, ways: int, conditions: bool) -> None:
        self.todo: list[tuple[Any, frozenset[int]]] = []
        self.seen: set[tuple[int, frozenset[int]]] = set()
        self.plain: dict[int, Schema] = {}
        self.unions: dict[int, list[Any]] = {}
        self.scopes: set[tuple[int, int]] = set()
        self.ways, self.conditions, self.complete = ways, conditions, True

    def unite(self, branches: list[Any], owners: frozenset[int]) -> None:
        self.unions[id(branches)] = branches
        self.scopes.update((owner, id(branches)) for owner in owners)


def _dotted(trail: Any) -> str:
    steps: list[str] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    ids = "".join(step if step.startswith("[") else f"{step}." for step in reversed(steps))
    return ids.replace(".[", "[").replace("]", "].")


def pointed_at(root: Any, ref: str) -> Any:
    """Return the target of a reference with a JSON pointer (`#/$defs/a~1b`); None if there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    target = root
    for step in unquote(ref[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and step in target:
            target = target[step]
        elif isinstance(target, list) and step.isdecimal() and len(step) < 9 and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target


def show(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        text = type(value).__name__
    return shortened(text)

"""Arrays: `prefixItems`, `items` and the number of items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.rules import Repeat

if TYPE_CHECKING:
    from ovserve.llm.grammar.writer import Writer

UNENFORCED = ("contains", "minContains", "maxContains")
REST = ("items", "additionalItems", "unevaluatedItems")


def body(writer: Writer, plain: tuple[Schema, ...]) -> list[list[str | int | Repeat]]:
    writer.asked(plain, *UNENFORCED)
    for node in plain:
        if node.get("uniqueItems"):
            writer.document.report(node, "uniqueItems")
    least, most = writer.count(plain, "minItems", "maxItems")
    prefixes = [_prefix(writer, node) for node in plain]
    rests = [_rest(node) for node in plain]
    length = max((len(prefix) for prefix in prefixes), default=0)
    if most is not None:
        length = min(length, most)
        if least > most:
            return []
    writer.rules.spend(length * len(plain))
    tokens: list[str | int | Repeat] = []
    for i in range(length):
        parts = [prefix[i] if i < len(prefix) else rest for prefix, rest in zip(prefixes, rests, strict=True)]
        tokens += ['", "'] * (i > 0) + [writer.of(*(part for part in parts if part is not None))]
    given = [rest for rest in rests if rest is not None]
    item = writer.of(*given) if given or not length or least > length else None
    more = None if most is None else most - length
    if item is None or more == 0:
        return [['"["', *tokens, '"]"']]
    return _with_rest(tokens, item, max(least - length, 0), more)


def _with_rest(
    tokens: list[str | int | Repeat], item: int, least: int, most: int | None
) -> list[list[str | int | Repeat]]:
    if tokens:
        return [['"["', *tokens, Repeat(['", "', item], least, most), '"]"']]
    others = Repeat(['", "', item], max(least - 1, 0), None if most is None else most - 1)
    filled: list[str | int | Repeat] = ['"["', item, others, '"]"']
    return [filled] if least else [['"[]"'], filled]


def _prefix(writer: Writer, node: Schema) -> list[Any]:
    """Return the schemas of the first items; drafts before 2020 write them as an array in `items`."""
    found = node.get("prefixItems", node.get("items") if isinstance(node.get("items"), list) else [])
    if not isinstance(found, list):
        raise writer.document.fault(node, "prefixItems", "expected an array", found)
    return found


def _rest(node: Schema) -> Any:
    """Return the schema of the items after those; None if undefined."""
    named = "items" if not isinstance(node.get("items", []), list) else None
    if named is None:
        named = next((name for name in REST[1:] if name in node), None)
    return None if named is None else node[named]

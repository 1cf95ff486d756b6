"""How the grammars hold public collections of schemas with instances; the numbers may only improve.

`make schema-suite` tries all of the real schemas, `make test-long` some. A schema is served if its grammar compiles
and nothing of it is left out, as `strict: true` requires. Of those, no invalid instance may be admitted, and few
valid ones are not. tests/vectors/jsonschema/README.md names the sources.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.conjunction import pointed_at
from ovserve.llm.grammar.constraint import ebnf
from ovserve.llm.grammar.writer import write
from tests.breadth import examples
from tests.bytewise import Language

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[1] / "vectors" / "jsonschema"
OPTIONAL = ("ecmascript-regex.json", "non-bmp-regex.json", "bignum.json")
FEW = 250  # real schemas in every run
MAX_TEXT = 20_000
MAX_FORMS = 200  # orders of keys of a value
# Schemas served at least, and valid instances that are not admitted at most.
SUITE = (397, 47)
REAL = {FEW: (230, 5), 1500: (1448, 10)}


def served(schema: Any) -> Language | None:
    try:
        written = write(schema)
        return None if written.unenforced else Language(ebnf(written.grammar))
    except (InvalidArgument, AssertionError):  # the latter: it does not compile
        return None


def forms(value: Any) -> Iterator[str]:
    """Yield texts of a value, with orders of the keys of its objects."""
    if isinstance(value, dict) and value:
        orders = itertools.permutations(value) if len(value) <= 4 else [tuple(value)]
        for keys in orders:
            inner = [list(itertools.islice(forms(value[key]), 6)) for key in keys]
            for parts in itertools.islice(itertools.product(*inner), 24):
                pairs = zip(keys, parts, strict=True)
                yield "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in pairs) + "}"
    elif isinstance(value, list) and value:
        inner = [list(itertools.islice(forms(item), 6)) for item in value]
        for parts in itertools.islice(itertools.product(*inner), 24):
            yield "[" + ", ".join(parts) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            yield str(int(value))


def ordered(value: Any, schema: Any, root: Any, depth: int = 0) -> Any:
    """Return the value with the keys of its objects in the order of the schema, as grammars write them."""
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, Mapping) else None
        return [ordered(item, items, root, depth + 1) for item in value]
    if not isinstance(value, dict) or depth > 40:
        return value
    parts: dict[str, Any] = {}
    for name, part in properties(schema, root, set()):
        parts.setdefault(name, part)
    other = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    keys = [key for key in parts if key in value] + [key for key in value if key not in parts]
    return {key: ordered(value[key], parts.get(key, other), root, depth + 1) for key in keys}


def properties(schema: Any, root: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    if isinstance(schema.get("$ref"), str):
        yield from properties(pointed_at(root, schema["$ref"]), root, seen)
    if isinstance(schema.get("properties"), Mapping):
        yield from schema["properties"].items()
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(keyword) or ():
            yield from properties(branch, root, seen)


def suite() -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for path in sorted((DATA / "suite").rglob("*.json")):
        if "optional" not in path.parts or "format" in path.parts or path.name in OPTIONAL:
            for group in json.loads(path.read_text()):
                schema = group["schema"]
                yield f"{path.name}: {group['description']}", schema, group["tests"]


def test_the_json_schema_test_suite() -> None:
    count = missing = 0
    wrong: list[str] = []
    for name, schema, cases in suite():
        language = served(schema)
        if language is None:
            continue
        count += 1
        for case in cases:
            admitted = any(text in language for text in itertools.islice(forms(case["data"]), MAX_FORMS))
            missing += case["valid"] and not admitted
            if admitted and not case["valid"]:
                wrong.append(f"{name}: {case['description']}")
    assert not wrong
    assert count >= SUITE[0], count
    assert missing <= SUITE[1], missing


def test_real_schemas() -> None:
    few = min(examples(FEW), 1500)
    count = missing = 0
    wrong: list[str] = []
    with gzip.open(DATA / "real.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines][:: 1500 // few][:few]
    for row in rows:
        language = served(row["schema"])
        if language is None:
            continue
        count += 1
        for case in row["tests"]:
            text = json.dumps(ordered(case["data"], row["schema"], row["schema"]), ensure_ascii=False)
            if len(text) > MAX_TEXT:
                continue
            admitted = text in language
            missing += case["valid"] and not admitted
            if admitted and not case["valid"]:
                wrong.append(f"{row['name']}: {text[:200]}")
    assert len(rows) == few
    assert not wrong
    assert count >= REAL[few][0], count
    assert missing <= REAL[few][1], missing

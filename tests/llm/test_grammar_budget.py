"""Schemas that take long: the event loop gives them up within some milliseconds, and a request's work is bounded
however many schemas it has."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.guidance import guided
from ovserve.llm.grammar.rules import Budget, Costly, in_loop
from ovserve.llm.grammar.writer import compact, write
from ovserve.llm.parsing import registry
from ovserve.llm.request import ToolPolicy

HELD = 0.4  # seconds of CPU; the slowest takes 0.035 (2026-11-23, Xeon)
CALLS = 1_000_000  # of functions: the most is 680,000; without the bound of the loop 3,000,000
TOO_SHORT = 0.02  # seconds: no processor makes so many calls in it, and counting takes ten times as long
TRIES = 5

TEXT = {"type": "string"}
DIALECTS = ("", "hermes3", "qwen3coder", "pythonic", "gemma4")


def laugh(levels: int, keyword: str) -> dict[str, Any]:
    defs = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 10} for i in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{levels}": TEXT}}


def properties(count: int, make: Callable[[int], Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"k{i}": make(i) for i in range(count)}}


def anchors(name: str) -> dict[str, Any]:
    defs = {f"d{i}": {"$anchor": f"a{i}"} for i in range(4000)}
    return {"$defs": defs, "anyOf": [{"$ref": f"#{name}{i}"} for i in range(3000)]}


def rotated(i: int) -> dict[str, Any]:
    return {"const": 0 if i < 59 else i}


# Each is at most what a body may hold that is decoded in the event loop.
WORST = {
    "optional": properties(5000, lambda i: TEXT),
    "others": {**properties(5000, lambda i: TEXT), "additionalProperties": TEXT},
    "long name": {"properties": {"\u4e00" * 300_000: TEXT}},
    "trie of a long name": {"properties": {"x" * 100_000: TEXT}, "additionalProperties": TEXT},
    "anyOf anyOf": laugh(30, "anyOf"),
    "allOf allOf": laugh(1500, "allOf"),
    "oneOf oneOf": laugh(30, "oneOf"),
    "arrays of arrays": laugh(30, "prefixItems"),
    "product": {"allOf": [{"anyOf": [{"properties": {f"a{j}_{i}": {}}} for i in range(10)]} for j in range(12)]},
    "enum": {"enum": [f"{i}{'x' * 100}" for i in range(5000)]},
    "long constant": {"const": "\u4e00" * 300_000},
    "keys by pattern": {"patternProperties": {f"a{i}": {} for i in range(5000)}},
    "pattern": {"pattern": "a?" * 200_000},
    "class of characters": {"pattern": f"[{''.join(chr(0x4E00 + 2 * i) for i in range(8000))}]"},
    "multiples": properties(500, lambda i: {"type": "integer", "multipleOf": 1999 - i % 7, "minimum": i, "maximum": 10**14 + i}),
    "same multiples": properties(1000, lambda i: {"type": "integer", "multipleOf": 1999}),
    "ranges": properties(3000, lambda i: {"type": "number", "minimum": 1.23456789e-20, "maximum": 9.87654321e38}),
    "lengths": properties(3000, lambda i: {"type": "string", "minLength": i, "maxLength": i + 5}),
    "formats": properties(3000, lambda i: {"type": "string", "format": "date-time"}),
    "branches": {"oneOf": [{"type": "object", "required": [f"k{j}" for j in range(60)], **properties(60, rotated)}] * 64},
    "anchors": anchors("a"),
    "no anchors": anchors("b"),
    "not enforced": properties(5000, lambda i: {"not": {"multipleOf": i + 1}}),
    "negations": properties(5000, lambda i: {"not": {"enum": [i, f"{i}"]}}),
    "conditions": {"allOf": [{"if": {"properties": {f"k{i}": {"const": i}}}, "then": {"required": [f"k{i}"]}} for i in range(3000)]},
    "overlaps": {"oneOf": [{"type": "object", "required": [f"k{i}"]} for i in range(64)]},
    "dependencies": {"dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(5000)}},
    "fewest properties": properties(100, lambda i: {**properties(60, lambda j: TEXT), "minProperties": 30}),
    "wrong at the end": properties(5000, lambda i: TEXT if i < 4999 else 5),
}  # fmt: skip


def attempt(call: Callable[[], object]) -> None:
    with suppress(Costly, InvalidArgument), in_loop():
        call()


def check(call: Callable[[], object]) -> None:
    """Measure the CPU time of what the event loop does of it, the best of some tries, and count its calls."""
    best = HELD
    for _ in range(TRIES):
        began = time.process_time()
        attempt(call)
        best = min(best, time.process_time() - began)
        if best < HELD / 2:
            break
    assert best < HELD
    if best < TOO_SHORT:
        return
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        attempt(call)
    finally:
        sys.setprofile(None)
    assert calls < CALLS


@pytest.mark.parametrize(
    "dialect", ["", *(pytest.param(name, marks=pytest.mark.long) for name in DIALECTS[1:])]
)
@pytest.mark.parametrize("name", WORST)
def test_the_loop_gives_up_in_time(name: str, dialect: str) -> None:
    schema = json.loads(json.dumps(WORST[name]))  # no part of it is the same object twice
    if not dialect:
        check(lambda: write(schema))
        return
    guide = registry.default().tool(dialect)
    assert guide is not None
    assert guide.guide is not None
    call = guide.guide.call
    check(lambda: call("f", {"type": "object", "properties": {"p": schema}, **schema}))


def policy(tools: int, schema: dict[str, Any]) -> ToolPolicy:
    functions = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(tools)
    ]
    return ToolPolicy(tuple(functions), "required", tuple(f"f{i}" for i in range(tools)))


def asked(tools: ToolPolicy, dialect: str) -> object:
    return guided(tools, None, tool=dialect, reasoning=None, inside_reasoning=False)


@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_many_tools_share_one_budget(dialect: str) -> None:
    many = policy(1000, {"type": "object", "properties": {"a": TEXT}})
    check(lambda: asked(many, dialect))


@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_no_number_of_tools_takes_more_than_the_work_of_a_request(dialect: str) -> None:
    # Each of these alone is within the bound, and all of them are a few bytes of grammar.
    slow = {"type": "object", "properties": {"a": {"allOf": [{"title": "n", "type": "integer"}] * 30_000}}}
    with Budget(), pytest.raises(InvalidArgument, match="400000 steps"):
        asked(policy(1000, slow), dialect)


def test_what_a_coding_agent_sends_is_read_at_once_or_in_a_body_process() -> None:
    nested = properties(8, lambda i: properties(4, lambda j: {"type": "string", "description": "x" * 80}))
    sixty = policy(60, {**nested, "required": ["k0", "k1"], "additionalProperties": False})
    with Budget():
        assert asked(sixty, "hermes3") is not None
    few = policy(12, {**nested, "required": ["k0", "k1"], "additionalProperties": False})
    with in_loop():
        assert asked(few, "hermes3") is not None
    with in_loop():
        assert compact(properties(300, lambda i: {"type": ["string", "null"]}))


def test_without_a_budget_each_schema_has_its_own() -> None:
    for _ in range(3):
        with pytest.raises(InvalidArgument, match="400000 steps"):
            write({"allOf": [properties(100, lambda i: TEXT) for _ in range(5000)]})


def test_a_budget_ends_with_its_call() -> None:
    large = properties(2000, lambda i: TEXT)
    with in_loop(), pytest.raises(Costly):
        write(large)
    assert write(large).grammar

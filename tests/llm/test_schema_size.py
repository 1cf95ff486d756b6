"""Hostile schemas: linear in time and memory, or rejected by name. Each in a child with a limit on both."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ovserve.llm.grammar.constraint import constrain
from ovserve.llm.grammar.writer import compact

MEMORY = 600 * 1024 * 1024  # of address space
CPU = 40  # seconds, on a slow machine; each takes less than one

# All in a process that imports once, 0.5 s, and forks one with the limits for each schema.
RUN = f"""
import json, os, resource, sys
from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.writer import compact
from ovserve.llm.parsing import registry
text = {{"type": "string"}}
def names(n): return {{f"k{{i}}": text for i in range(n)}}
def deep(n):
    schema = {{"type": "null"}}
    for _ in range(n): schema = {{"items": schema}}
    return schema
def laugh(n, keyword):
    return {{"$ref": "#/$defs/a0", "$defs": {{
        **{{f"a{{i}}": {{keyword: [{{"$ref": f"#/$defs/a{{i + 1}}"}}] * 10}} for i in range(n)}}, f"a{{n}}": text}}}}
def said(schema, tool):
    try:
        if tool:
            guide = registry.default().tool(tool).guide
            guide.call("f", {{"type": "object", "properties": {{"p": schema}}, **schema}})
        else:
            compact(schema)
        return "written"
    except InvalidArgument as error:
        return str(error)
for schema in sys.argv[2:]:
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
        resource.setrlimit(resource.RLIMIT_CPU, ({CPU}, {CPU}))
        schema = eval(schema)
        print(json.dumps([said(schema, tool) for tool in sys.argv[1].split(",")]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("null", flush=True)
"""


def run(tools: str, *schemas: str) -> list[list[str] | None]:
    """What each tool parser says of each schema; "" is the schema alone. None: its process did not end well."""
    command = [sys.executable, "-c", RUN, tools, *schemas]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_optional_properties() -> None:
    counts = (4000, 20000)
    schemas = [f'{{"type": "object", "properties": names({count})}}' for count in counts]
    for count, lines in zip(counts, run(",hermes3,qwen3coder,pythonic,gemma4", *schemas), strict=True):
        assert lines
        assert all("262144 bytes of grammar" in line for line in lines), lines
        assert f"{count} properties" in lines[0]


@pytest.mark.long
def test_what_could_explode(subtests: pytest.Subtests) -> None:
    schemas = [
        'laugh(30, "anyOf")',
        'laugh(3000, "allOf")',
        'laugh(30, "prefixItems")',
        'laugh(30, "oneOf")',
        '{"allOf": [{"anyOf": [{"properties": {f"a{j}_{i}": {}}} for i in range(10)]} for j in range(12)]}',
        '{"type": "object", "required": [f"k{i}" for i in range(50000)]}',
        '{"enum": list(range(100000))}',
        '{"allOf": [{"properties": names(100)} for _ in range(5000)]}',
        '{"patternProperties": {f"a{i}": {} for i in range(20000)}}',
        '{"properties": names(20000), "minProperties": 10000}',
        '{"properties": {f"k{i}": {"not": {}} for i in range(20000)}}',
        '{"pattern": "(" * 100000}',
        '{"pattern": "a?" * 200000}',
        '{"type": "number", "minimum": 1e308, "multipleOf": 1e-300}',
        "deep(100000)",
    ]
    for schema, lines in zip(schemas, run(",qwen3coder", *schemas), strict=True):
        with subtests.test(schema):
            assert lines
            assert all(lines)


def test_text_is_linear() -> None:
    sizes = [
        len(constrain(compact({"properties": {f"k{i:04}": {} for i in range(n)}}), "x").format)
        for n in (200, 400, 800)
    ]
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])

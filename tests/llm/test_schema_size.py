"""Hostile schemas: linear in time and memory, or rejected by name. Each in a child with a limit on both."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from ovserve.llm.grammar.constraint import constrain
from ovserve.llm.grammar.writer import compact

MEMORY = 600 * 1024 * 1024  # of address space
CPU = 40  # seconds, on a slow machine; each takes less than one

RUN = """
import resource
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CPU, ({cpu}, {cpu}))
from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.writer import compact
from ovserve.llm.parsing import registry
text = {{"type": "string"}}
def names(n): return {{f"k{{i}}": text for i in range(n)}}
def deep(n):
    schema = {{"type": "null"}}
    for _ in range(n): schema = {{"items": schema}}
    return schema
def laugh(n, keyword, inner=lambda x: x):
    return {{"$ref": "#/$defs/a0", "$defs": {{
        **{{f"a{{i}}": {{keyword: [{{"$ref": f"#/$defs/a{{i + 1}}"}}] * 10}} for i in range(n)}}, f"a{{n}}": text}}}}
schema = {schema}
for tool in {tools!r}:
    try:
        if tool:
            guide = registry.default().tool(tool).guide
            guide.call("f", {{"type": "object", "properties": {{"p": schema}}, **schema}})
        else:
            compact(schema)
        print("written")
    except InvalidArgument as error:
        print(error)
"""


def run(schema: str, *tools: str) -> list[str]:
    """Return a line for each tool parser; "" is the schema alone."""
    code = textwrap.dedent(RUN).format(memory=MEMORY, cpu=CPU, schema=schema, tools=tools)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=230, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(tools), lines
    return lines


@pytest.mark.parametrize("count", [4000, 20000])
def test_optional_properties(count: int) -> None:
    said = run(
        f'{{"type": "object", "properties": names({count})}}',
        "",
        "hermes3",
        "qwen3coder",
        "pythonic",
        "gemma4",
    )
    assert all("262144 bytes of grammar" in line for line in said), said
    assert f"{count} properties" in said[0]


@pytest.mark.parametrize(
    "schema",
    [
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
    ],
)
def test_what_could_explode(schema: str) -> None:
    assert all(run(schema, "", "qwen3coder"))


def test_text_is_linear() -> None:
    sizes = [
        len(constrain(compact({"properties": {f"k{i:04}": {} for i in range(n)}}), "x").format)
        for n in (200, 400, 800)
    ]
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])

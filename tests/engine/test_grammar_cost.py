"""Grammars that are cheap by their form: they go to the engine without a trial, so none of them may be dear."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import openvino_genai as ov_genai
import pytest

from ovserve.engine.client.text import TextClient
from ovserve.engine.host.memory import resident
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.worker.genai.grammar import TRIVIAL, GrammarCompiler
from ovserve.llm.grammar import constraint as c
from ovserve.llm.grammar.cost import (
    MAX_ALTERNATIVES,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_OPTIONAL,
    PROBE_TOKENS,
    is_cheap,
)
from ovserve.llm.grammar.writer import compact
from tests.engine.conftest import Start, read_all, request

pytestmark = pytest.mark.long

COMPILE_SECONDS, TOKEN_SECONDS, MEMORY = 6.0, 0.1, 64 << 20  # ten times what was measured, in CPU seconds


def cheap(form: c.Format) -> bool:
    return is_cheap(c.constrain(form, "x").format)


def fields(count: int, of: c.Format, *, required: bool = True) -> dict[str, Any]:
    names = [f"k{i}" for i in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, of), "required": names if required else []}


def nested(depth: int, inner: dict[str, Any]) -> dict[str, Any]:
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


OPTIONAL = fields(MAX_OPTIONAL, {"type": "integer"}, required=False)
ITSELF = {"$ref": "#/$defs/a"}
WORST = {
    "deep": c.json_schema(nested(MAX_DEPTH - 3, {})),
    "many fields": c.json_schema(fields(300, {})),
    "many optional": c.json_schema(fields(8, OPTIONAL)),
    "enum of prefixes": c.json_schema({"enum": ["a" * i for i in range(1, 120)]}),
    "alternatives": c.json_schema({"anyOf": [nested(3, {"type": "string"})] * MAX_ALTERNATIVES}),
    "recursion": c.json_schema({**ITSELF, "$defs": {"a": {"anyOf": [nested(1, ITSELF)] * MAX_ALTERNATIVES}}}),
    "tags": c.tags([c.tag("<" + "t" * i + ">", c.json_schema({}), "</t>") for i in range(60)], "\n"),
    "triggers": c.triggered(["<"], [c.tag("<" + "t" * i, c.json_schema({}), ">") for i in range(60)], only_one=False),
    "sequence": c.sequence(*[c.either([c.json_schema({"type": "string"}), c.json_schema({})])] * 30),
    "free text": c.any_text([("ab" * i) + "c" for i in range(10)]),
    "literal": c.literal("a" * (MAX_BYTES - 100)),
    "any JSON object": c.json_object(),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler(short_model: Path) -> GrammarCompiler:
    tokenizer = ov_genai.Tokenizer(short_model)
    compiler = GrammarCompiler(tokenizer, len(tokenizer.get_vocab()))
    compiler.compile(TRIVIAL)
    return compiler


@pytest.mark.parametrize("name", WORST)
def test_the_worst_of_the_cheap_ones_is_cheap(compiler: GrammarCompiler, name: str) -> None:
    assert cheap(WORST[name])
    tag = c.structural_tag(c.constrain(WORST[name], "x").format)
    held, began = resident(os.getpid()), time.process_time()
    assert compiler.compile(tag, 1) == ""
    compiled = time.process_time()
    assert compiler.compile(tag) == ""
    each = (time.process_time() - compiled) / PROBE_TOKENS
    assert compiled - began < COMPILE_SECONDS
    assert each < TOKEN_SECONDS
    assert resident(os.getpid()) - held < MEMORY


@pytest.mark.parametrize(
    "form",
    [
        c.regex("a"),
        c.ebnf('root ::= "a"'),
        c.literal("a" * MAX_BYTES),
        c.any_text(["a" * 7000]),
        c.json_schema(nested(MAX_DEPTH, {})),
        c.json_schema(fields(MAX_OPTIONAL + 1, {}, required=False)),
        c.json_schema({"anyOf": [{}] * (MAX_ALTERNATIVES + 2)}),
        c.json_schema({"type": "string", "maxLength": 3}),
        c.json_schema({"type": "string", "pattern": "a"}),
        c.json_schema({"type": "integer", "minimum": 3}),
        c.json_schema({"type": "array", "items": {"type": "string", "format": "date"}}),
        c.json_schema({"allOf": [{}]}),
        c.json_schema({"properties": {"a": 3}}),
        {"type": "sequence", "elements": 3},
        {"type": "zebra"},
    ],
)
def test_what_is_not_known_to_be_cheap_is_tried(form: c.Format) -> None:
    assert not cheap(form)


async def ask(client: TextClient, form: c.Format) -> str:
    constraint = c.constrain(form, "response_format")
    text, _ = await read_all(await client.generate(request(constraint=constraint, max_tokens=4)))
    return text


async def test_a_cheap_grammar_is_compiled_once(start: Start, short_model: Path) -> None:
    """By the engine, which says so if it does not compile, to this request alone."""
    client = await start(str(short_model))
    assert await ask(client, c.json_schema({"type": "boolean"})) in ("true", "false")
    bad = c.json_schema({"$ref": "#/$defs/none"})
    assert cheap(bad)
    with pytest.raises(InvalidArgument, match="response_format: the grammar does not compile: ") as caught:
        await ask(client, bad)
    assert caught.value.param == "response_format"
    assert (client.grammars.compiles, client.grammars.pid) == (0, 0), "no other process was started"
    assert await ask(client, c.regex("[0-9]{3}")) != ""
    assert client.grammars.compiles == 1
    assert client.stats().restarts == 0


LONG: list[c.Format] = [
    compact({"type": "string", "maxLength": 1000}),
    compact({"type": "string", "maxLength": 1_000_000}),
    compact({"type": "string", "minLength": 700, "maxLength": 5000}),
    compact({"type": "string", "minLength": 1500}),
    compact({"type": "string", "pattern": '^[^"]{1,500}$'}),
    compact(fields(6, {"type": "string", "maxLength": 300})),
]


@pytest.mark.parametrize("form", LONG)
def test_a_long_bound_of_a_length_is_not_dear(compiler: GrammarCompiler, form: c.Format) -> None:
    """`maxLength: 1000` took 14 s to compile and 0.6 s for a token before it was written in blocks."""
    tag = c.structural_tag(c.constrain(form, "x").format)
    began = time.process_time()
    assert compiler.compile(tag, 1) == ""
    compiled = time.process_time()
    assert compiler.compile(tag) == ""
    each = (time.process_time() - compiled) / PROBE_TOKENS
    print(f"{compiled - began:.2f} s to compile, {each * 1000:.1f} ms for a token")  # noqa: T201
    assert compiled - began < COMPILE_SECONDS
    assert each < 3 * TOKEN_SECONDS

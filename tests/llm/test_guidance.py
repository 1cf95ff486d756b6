"""What a grammar is made of tools, format and thinking; that it is kept is seen in
tests/engine/test_tool_grammars.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm.grammar.constraint import constrain, regex
from ovserve.llm.grammar.guidance import guided
from ovserve.llm.grammar.writer import compact
from ovserve.llm.model import ModelContext
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.parsing.guide import bare_text, json_arguments
from ovserve.llm.parsing.registry import ParserChoice, default
from ovserve.llm.request import Delta, Sampling, ToolPolicy
from tests.bytewise import Language, some_text
from tests.llm.parsing.cuts import completion, packets

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "strict": True, "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}  # fmt: skip
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS: Any = (WEATHER, CLOCK)
BOTH = ("weather", "clock")
FORMAT = constrain(regex("x+"), "response_format")


def made(policy: ToolPolicy | None, **how: Any) -> Any:
    how = {"tool": "hermes3", "reasoning": None, "inside_reasoning": False, "asked": None, **how}
    asked = how.pop("asked")
    constraint = guided(policy, asked, **how)
    return None if constraint is None else json.loads(constraint.format)


def test_free_where_nobody_asks() -> None:
    assert made(None) is None
    assert made(ToolPolicy(TOOLS, "none", ())) is None
    assert made(ToolPolicy((CLOCK,), "auto", ("clock",))) is None, "no strict function"


def test_required_is_calls_and_nothing_else() -> None:
    form = made(ToolPolicy(TOOLS, "required", BOTH))
    assert form["type"] == "tags_with_separator"
    assert form["at_least_one"]
    assert ["weather" in tag["begin"] for tag in form["tags"]] == [True, False]
    one = made(ToolPolicy(TOOLS, "required", ("clock",), parallel=False))
    assert one["begin"] == '<tool_call>\n{"name": "clock", "arguments": '


def test_auto_holds_strict_functions_to_their_schema_and_lets_others_be() -> None:
    form = made(ToolPolicy(TOOLS, "auto", BOTH))
    assert (form["type"], form["triggers"], form["stop_after_first"]) == (
        "triggered_tags",
        ["<tool_call>"],
        False,
    )
    assert [tag["content"] for tag in form["tags"]] == [
        compact(WEATHER["function"]["parameters"], exact=True),  # type: ignore[index]
        compact({"type": "object"}),
    ]
    form = made(ToolPolicy(TOOLS, "auto", BOTH, parallel=False), guide_auto=True)
    assert form["stop_after_first"]
    assert form["tags"][1]["content"] == compact({"type": "object", "properties": {}})


def test_a_format_beside_tools() -> None:
    assert made(ToolPolicy(TOOLS, "required", BOTH), asked=FORMAT)["type"] == "tags_with_separator"
    form = made(ToolPolicy(TOOLS, "auto", BOTH), asked=FORMAT)
    assert form["type"] == "or"
    assert form["elements"][1] == {"type": "regex", "pattern": "x+"}


def test_thinking_goes_first() -> None:
    outside = made(None, asked=FORMAT, reasoning="qwen3")
    thought, _, answer = outside["elements"][0]["elements"]
    assert (thought["begin"], thought["end"]) == ("<think>", ["</think>"])
    assert answer == outside["elements"][1] == {"type": "regex", "pattern": "x+"}
    inside = made(None, asked=FORMAT, reasoning="qwen3", inside_reasoning=True)
    assert inside["elements"][0]["begin"] == ""
    assert made(None, asked=FORMAT, reasoning="deepseek_r1") == inside, "it always thinks"


def test_what_cannot_be_forced_is_refused() -> None:
    with pytest.raises(UnsupportedParameter, match="no grammar"):
        made(ToolPolicy(TOOLS, "required", BOTH), tool=None)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "any_text"),
        ({"type": "integer"}, None),
        ({}, None),
        ({"enum": ["a", "b"]}, "or"),
        ({"enum": [1, 2]}, None),
        ({"enum": ["a", 1]}, "any_text"),
        ({"const": "a"}, "const_string"),
        ({"type": ["null", "string"]}, "any_text"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "any_text"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["x", "y"]}}}, "or"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, None),
        ({"$ref": "#/$defs/none"}, None),
    ],
)
def test_where_text_stands_bare(schema: dict[str, Any], kind: str | None) -> None:
    form = bare_text(schema)
    assert (form and form["type"]) == kind


GUIDED = [
    name for name in sorted(default().tool_names) if (dialect := default().tool(name)) and dialect.guide
]
SEPARATE = [  # dialects that write each parameter by itself
    name
    for name in GUIDED
    if (dialect := default().tool(name)) and dialect.guide and dialect.guide.arguments is not json_arguments
]
PROPERTY_NAMES = ["n", "a b", "$filter", "x-y", "@type", "a/b", "\u00e4", "a.b", "1", "a\\b"]
UNTAGGED = ['a"b', "<x>", "it's", "a\nb", " a"]  # no format without quotes has them
UNLISTED = [*UNTAGGED, "f[x]", "a=b", "a,b", "a(b)", "{a}", "a|b", "a:b"]
LISTED = ("gemma4", "lfm2", "olmo3", "pythonic")  # write them as lists do, `a=1, b=2`


def strict_call(schema: dict[str, Any], dialect: str) -> Any:
    """The constraint of exactly one call of a strict function, and its tools."""
    tools: Any = ({"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}},)
    policy = ToolPolicy(tools, "required", ("f",), parallel=False)
    constraint = guided(policy, None, tool=dialect, reasoning=None, inside_reasoning=False)
    assert constraint is not None
    return constraint, tools


@pytest.mark.parametrize("dialect", GUIDED)
def test_a_forced_call_can_be_read_whatever_its_parameters_are_called(
    dialect: str, subtests: pytest.Subtests
) -> None:
    refused = () if dialect not in SEPARATE else UNLISTED if dialect in LISTED else UNTAGGED
    for name in (*PROPERTY_NAMES, *UNLISTED):
        schema = {
            "type": "object", "properties": {name: {"const": 5}}, "required": [name], "additionalProperties": False,
        }  # fmt: skip
        with subtests.test(name):
            if name in refused:
                with pytest.raises(InvalidArgument, match="no form for the name"):
                    strict_call(schema, dialect)
                optional, _ = strict_call(schema | {"required": []}, dialect)
                assert json.dumps(name)[1:-1] not in optional.format, "it is left out"
                continue
            constraint, tools = strict_call(schema, dialect)
            text = some_text(constraint)
            answer = completion(packets([text], dialect, None, list(tools)))
            assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
                ("f", {name: 5})
            ]
            assert not answer.content


RELATIONS: list[dict[str, Any]] = [
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"minProperties": 1},
    {"maxProperties": 1},
    {"dependentRequired": {"a": ["b"]}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"enum": [{"a": True}]},
]


@pytest.mark.parametrize("dialect", GUIDED)
def test_a_strict_function_is_refused_where_its_parameters_depend_on_each_other_and_stand_apart(
    dialect: str, subtests: pytest.Subtests
) -> None:
    boolean = {"type": "boolean"}
    base = {"type": "object", "properties": {"a": boolean, "b": boolean}, "additionalProperties": False}
    for possible in ({}, {"not": {"required": ["a"]}}, {"minProperties": 0, "maxProperties": 2}):
        strict_call(base | possible, dialect)
    for relation in RELATIONS:
        with subtests.test(str(relation)):
            if dialect not in SEPARATE:
                strict_call(base | relation, dialect)
                continue
            with pytest.raises(InvalidArgument, match="with strict: true"):
                strict_call(base | relation, dialect)


@pytest.mark.parametrize(
    ("prefill", "begun"),
    [
        ("x", "x"),
        (" x ", "x "),
        ("<think>hm", ""),
        ("<think>hm</think>\n\nx", "x"),
        ("", ""),
    ],
)
def test_an_answer_that_the_client_began_goes_on_in_its_format(prefill: str, begun: str) -> None:
    model = ModelContext(parsers=ParserChoice(reasoning="qwen3"), decoding="paged")
    sampling = Sampling(constraint=FORMAT)
    held = model.constrained(f"prompt{prefill}", sampling, None, prefill).constraint
    assert held is not None
    assert held.begun == begun
    trimmed = model.constrained(f"prompt{prefill.rstrip()}", sampling, None, prefill).constraint
    assert trimmed is not None
    assert trimmed.begun == begun.rstrip()


def test_calls_follow_the_text_that_the_client_began() -> None:
    model = ModelContext(parsers=ParserChoice(tool="hermes3"), decoding="paged")
    policy = ToolPolicy(TOOLS, "required", BOTH)
    held = model.constrained("promptI look.", Sampling(constraint=FORMAT), policy, "I look.").constraint
    assert held is not None
    assert held.begun == ""


def test_only_the_paged_engine_goes_on_in_a_format() -> None:
    with pytest.raises(InvalidArgument, match="response_format: only the paged engine continues"):
        ModelContext().constrained("promptx", Sampling(constraint=FORMAT), None, "x")


@pytest.mark.parametrize("thoughts", ['so "', "so '", "so `", "so", ""])
@pytest.mark.parametrize("answer", ['"yes"', "'no'", "`maybe`"])
def test_an_answer_in_quotes_follows_the_first_end_of_the_reasoning(thoughts: str, answer: str) -> None:
    """In free text an end between quotes is talked about, but the grammar takes each for one."""
    asked = Sampling(constraint=constrain(regex("\"[a-z]+\"|'[a-z]+'|`[a-z]+`"), "response_format"))
    model, prompt = ModelContext(parsers=ParserChoice(reasoning="qwen3")), "user: x\nassistant:"
    held, parsing = model.constrained(prompt, asked, None).constraint, model.parsing(prompt, asked)
    text = f"<think>{thoughts}</think>{answer}"
    assert held is not None
    assert text in Language(json.loads(held.format))
    for pieces in ([text], list(text)):
        parser = OutputParser(parsing)
        deltas = [*(Delta(piece, 1) for piece in pieces), Delta("", 0, "stop", last=True)]
        choice = completion(map(parser.feed, deltas))
        assert (choice.reasoning, choice.content) == (thoughts, answer)

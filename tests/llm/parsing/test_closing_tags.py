"""Values that hold their own dialect's tags, and calls that miss a part of their markup: nothing is lost, whole
and at every cut."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.llm.parsing.output import ToolCallBroken
from tests.breadth import examples
from tests.llm.parsing.cuts import events, result, tool
from tests.llm.parsing.test_roundtrip import BARE_TEXT, WRITERS, Call

TOOLS = [
    tool("write_file", path={"type": "string"}, content={"type": "string"}),
    tool("other", n={"type": "integer"}),
]
MARK = "@@@"
DIALECTS = sorted(BARE_TEXT)
VALUES = [
    "A </parameter> b",
    "<param>1</param>",
    '<parameter name="k">v</parameter>',
    "a\n</parameter>\nb",
    "ends </parameter>",
    "x </arg_value> y",
    "<arg_key>k</arg_key><arg_value>v</arg_value>",
    "</function>",
    "</invoke>",
    "see </parameter></function> and",
    "a </parameter>\n</function>\n</tool_call> b",
    "see </param></function> and",
    "</arg_value></tool_call> c",
    "x <tool_call> y </tool_call>",
    "<parameter=k>",
    "<parameter=path>",
    "</think>",
    "]]></param> z",
    '<|"|> z',
    'a <|"|>b<|"|> c<tool_call|>',
]


def read(text: str, name: str) -> list[Call]:
    """The calls of a text, which must be the same however it is cut."""
    whole = result([text], name, None, TOOLS)
    assert result(list(text), name, None, TOOLS) == whole
    for at in range(1, len(text), 13):
        assert result([text[:at], text[at:]], name, None, TOOLS) == whole
    content, _, calls = whole
    assert content == ""
    return [(called, json.loads(arguments)) for called, arguments in calls]


@pytest.mark.long
@pytest.mark.parametrize("name", DIALECTS)
def test_a_value_may_hold_tags(name: str, subtests: pytest.Subtests) -> None:
    for value in VALUES:
        for arguments in ({"path": "p", "content": value}, {"content": value, "path": "p"}):
            calls: list[Call] = [("write_file", arguments), ("other", {"n": 3})]
            text = WRITERS[name](calls)
            if name == "gemma4":  # in a string its delimiter is the model's quote
                calls[0] = ("write_file", {k: v.replace('<|"|>', '"') for k, v in arguments.items()})
            with subtests.test(value):
                assert read(text, name) == calls


@pytest.mark.parametrize("name", sorted(BARE_TEXT - {"gemma4", "minimax_m3"}))
def test_a_value_may_quote_whole_calls(name: str, subtests: pytest.Subtests) -> None:
    quotations: list[list[Call]] = [
        [("write_file", {"path": "q", "content": "r"})],
        [("write_file", {"content": "q", "path": "r"})],
        [("other", {"n": 1}), ("write_file", {"path": "q"})],
    ]
    for text in map(WRITERS[name], quotations):
        for arguments in ({"path": "p", "content": text}, {"content": text, "path": "p"}):
            calls: list[Call] = [("write_file", arguments)]
            with subtests.test(text):
                assert read(WRITERS[name](calls), name) == calls


ENDS = {
    "qwen3coder": ["</parameter>", "</function>", "</tool_call>"],
    "seed_oss": ["</parameter>", "</function>", "</seed:tool_call>"],
    "minimax_m2": ["</parameter>", "</invoke>", "</minimax:tool_call>"],
    "minicpm5": ["</param>", "</function>"],
    "deepseek_v32": ["</｜DSML｜parameter>", "</｜DSML｜invoke>"],
    "gigachat35": ["</｜GCML｜parameter>", "</｜GCML｜invoke>"],
    "glm45": ["</arg_value>", "</tool_call>"],
}


@pytest.mark.parametrize("name", ENDS)
def test_a_call_without_its_ends_takes_nothing_of_the_next(name: str) -> None:
    """Servers read it as one call (vLLM and SGLang give the first one's parameter the second's value)."""
    calls: list[Call] = [("write_file", {"path": "p"}), ("other", {"n": 3}), ("write_file", {"path": "q"})]
    text = WRITERS[name](calls)
    for left_out in (ENDS[name], ENDS[name][:1], ENDS[name][:2]):
        damaged = text
        for end in left_out:
            damaged = damaged.replace(end, "", 1)
        found = read(damaged, name)
        assert [
            (called, {k: v.strip() if k == "path" else v for k, v in args.items()}) for called, args in found
        ] == calls


JSON_DIALECTS = sorted(set(WRITERS) - BARE_TEXT - {"lfm2", "pythonic", "olmo3"})
ESCAPES = [  # as they are written, and what they mean
    (r"C:\path\Users", r"C:\path\Users"),
    (r"\d+\s*\(", r"\d+\s*\("),
    ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    (r"\u12 \uD", r"\u12 \uD"),
    (r"it\'s", "it's"),
    ("a\\\nb", "a\\\nb"),
    (r"C:\\path \"quoted\" \u00e9", 'C:\\path "quoted" é'),
]


@pytest.mark.parametrize("name", JSON_DIALECTS)
def test_escapes_that_are_none_are_repaired(name: str, subtests: pytest.Subtests) -> None:
    for written, value in ESCAPES:
        text = WRITERS[name]([("write_file", {"path": MARK, "content": "z"})]).replace(MARK, written)
        with subtests.test(written):
            assert read(text, name) == [("write_file", {"path": value, "content": "z"})]


# Arguments as models write them, and what they mean to the servers and clients that repair them.
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("{'path': 'p', 'content': 'it\\'s \"x\"'}", {"path": "p", "content": 'it\'s "x"'}),
    ("{'path': 'it's fine', 'n': 1}", {"path": "it's fine", "n": 1}),
    ('{"path": ["a", "b",], "content": "c",\n}', {"path": ["a", "b"], "content": "c"}),
    ('{"path": "p",, "content": "c"}', {"path": "p", "content": "c"}),
    ('{"path": "p" "content": ["c" "d"]}', {"path": "p", "content": ["c", "d"]}),
    ('{path: "p", content: "c"}', {"path": "p", "content": "c"}),
    ('{"a": True, "b": [False, None], "c": NaN}', {"a": True, "b": [False, None], "c": None}),
    ('{"n": +1, "m": .5, "k": 1_000, "h": 0x10}', {"n": 1, "m": 0.5, "k": 1000, "h": 16}),
    ('{"path": "two\nlines\tx", "content": """a "b" c"""}', {"path": "two\nlines\tx", "content": 'a "b" c'}),
    ('{"path": "p", // why\n "content": "c" /* x */}', {"path": "p", "content": "c"}),
    ('{\u201cpath\u201d: \u201cp\u201d, \u201cn\u201d: 1}', {"path": "p", "n": 1}),
    ('{"path": "say "hi" now", "content": "c"}', {"path": 'say "hi" now', "content": "c"}),
    ('{"path": "if (x) { d["a"] = {"b": "c"}; }", "n": 1}', {"path": 'if (x) { d["a"] = {"b": "c"}; }', "n": 1}),
    ('{"path": "<a href="x">y</a>", "n": 1}', {"path": '<a href="x">y</a>', "n": 1}),
    ('{"path": "p", "content": "c"', {"path": "p", "content": "c"}),
    ('{"path": "p", "content": ["a", "b"', {"path": "p", "content": ["a", "b"]}),
    ('{"path": [1, 2}', {"path": [1, 2]}),
    ('{"path": "p", "content": "c}', {"path": "p", "content": "c"}),
]  # fmt: skip


@pytest.mark.parametrize("name", JSON_DIALECTS)
def test_faults_in_arguments_are_repaired(name: str) -> None:
    for written, arguments in FAULTS:
        calls: list[Call] = [("write_file", {"path": MARK}), ("other", {"n": 3})]
        text = re.sub(r'\{"path": ?"@@@"\}', lambda _, written=written: written, WRITERS[name](calls))
        assert read(text, name) == [("write_file", arguments), ("other", {"n": 3})], written
        assert not any(isinstance(event, ToolCallBroken) for event in events(list(text), name, None, TOOLS))


ODD = "ab\\\"'{}[],:/ \n<>"


@given(
    st.dictionaries(st.text(ODD), st.recursive(
        st.text(ODD) | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a\"}'"), inner, max_size=2),
        max_leaves=4), max_size=3),
    st.sampled_from(JSON_DIALECTS), st.sampled_from([None, 1]),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(20))
def test_valid_arguments_pass_unchanged(arguments: dict[str, Any], name: str, indent: int | None) -> None:
    written = json.dumps(arguments, indent=indent)
    text = re.sub(r'\{"path": ?"@@@"\}', lambda _: written, WRITERS[name]([("write_file", {"path": MARK})]))
    whole = result([text], name, None, TOOLS)
    assert whole[2] == [("write_file", written)]
    assert result(list(text), name, None, TOOLS) == whole


@given(st.sampled_from(FAULTS), st.sampled_from(JSON_DIALECTS), st.booleans(), st.data())
@settings(deadline=None, max_examples=examples(20))
def test_a_cut_does_not_change_a_repair(
    fault: tuple[str, Any], name: str, limit: bool, data: st.DataObject
) -> None:
    text = re.sub(r'\{"path": ?"@@@"\}', lambda _: fault[0], WRITERS[name]([("write_file", {"path": MARK})]))
    at = data.draw(st.integers(0, len(text)))
    text = (
        text[:at]
        + data.draw(st.text("\"'{}[],:\\< /x", max_size=3))
        + text[at + data.draw(st.integers(0, 2)) :]
    )
    text = text[: data.draw(st.integers(at, len(text)))]
    whole = result([text], name, None, TOOLS, cut_off=limit)
    assert result(list(text), name, None, TOOLS, cut_off=limit) == whole


def test_arguments_in_which_an_answer_ends_stay_as_they_came() -> None:
    text = '<tool_call>{"name": "write_file", "arguments": {"path": "p", "content": "half of'
    assert result(list(text), "hermes3", None, TOOLS)[2] == [
        ("write_file", '{"path": "p", "content": "half of')
    ]
    text = '<|tool_call>call:write_file{path:<|"|>p<|"|>,content:<|"|>half of'
    assert result(list(text), "gemma4", None, TOOLS, cut_off=True)[2] == [
        ("write_file", '{"path": "p", "content": "half of')
    ]


def steps_of(text: str, name: str) -> int:
    """How many Python calls it takes to read a text that comes in pieces."""
    steps = 0

    def count_line(frame: Any, event: str, _: Any) -> None:
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count_line)
    try:
        result([text[at : at + 64] for at in range(0, len(text), 64)], name, None, TOOLS)
    finally:
        sys.setprofile(None)
    return steps


@pytest.mark.parametrize(
    ("name", "begin", "unit"),
    [
        ("qwen3coder", "", "\n<tool_call>\n<function=write_file>\n<parameter=path>\nx"),
        ("qwen3coder", "<function=other>\n<parameter=n>\n", "\n<tool_call>\n<function=other>\n"),
        ("qwen3coder", "<function=other>\n<parameter=n>", "</tool_call></function> x"),
        ("gemma4", "<|tool_call>call:other{o:{x:", "a,"),
        ("gemma4", "<|tool_call>call:other{o:{", "x:a b, "),
        ("gemma4", '<|tool_call>call:write_file{path:<|"|>', '<|"|>'),
        ("lfm2", "<|tool_call_start|>[write_file(path='", "',"),
        ("lfm2", "<|tool_call_start|>[write_file(path='", "', content="),
    ],
)
def test_what_is_left_out_is_looked_for_in_linear_time(name: str, begin: str, unit: str) -> None:
    assert steps_of(begin + unit * 1600, name) < 10 * steps_of(begin + unit * 200, name) + 20_000


@pytest.mark.parametrize("name", ["hermes3", "kimi_k2", "granite"])
def test_faults_are_repaired_in_linear_time(name: str) -> None:
    def calls(fault: str, count: int) -> int:
        return steps_of(WRITERS[name]([("write_file", {"path": MARK})]).replace(MARK, fault * count), name)

    for fault in (
        'a "b" ',
        "}}}}",
        '", "',
        "</tool_call> ",
        "<|tool_call_end|> ",
        '"}, {"',
        "'",
        "\\u12",
        "// ",
    ):
        assert calls(fault, 2000) < 12 * calls(fault, 250) + 20_000, fault


def test_of_strings_without_delimiters_there_is_a_bound() -> None:
    """The end of each is looked for in the rest of the call: that of 1,600 took 41 s."""
    names = [f"p{i}" for i in range(1600)]
    tools = [tool("f", **{name: {"type": "string"} for name in names})]

    def calls(count: int) -> list[Call]:
        text = ",".join(f"{name}:x" for name in names[:count])
        found = result([f"<|tool_call>call:f{{{text}}}<tool_call|>"], "gemma4", None, tools)[2]
        return [(name, json.loads(arguments)) for name, arguments in found]

    assert calls(60) == [("f", dict.fromkeys(names[:60], "x"))]
    assert calls(1600) == []


@pytest.mark.parametrize("name", ["qwen3coder", "seed_oss", "minimax_m2", "glm45"])
def test_a_call_that_has_begun_stays_one(name: str) -> None:
    """Text between its parameters is content, after it."""
    text = WRITERS[name]([("write_file", {"path": "p", "content": "c"})])
    second = text.index("<", text.index("path") + 30) if name == "glm45" else text.rindex("<param")
    second = text.rindex("<arg_key>") if name == "glm45" else second
    text = text[:second] + "stray words" + text[second:]
    content, _, calls = result(list(text), name, None, TOOLS)
    assert result([text], name, None, TOOLS) == (content, "", calls)
    [(called, arguments)] = calls
    assert called == "write_file"
    assert json.loads(arguments)["content"] == "c"
    assert "stray words" in content + arguments
    assert not any(isinstance(event, ToolCallBroken) for event in events(list(text), name, None, TOOLS))

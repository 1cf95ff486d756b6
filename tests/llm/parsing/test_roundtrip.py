"""Calls written as a model writes them, read back: for every dialect, any value, any cut.

The writers are the formats of parsers.md, so each is also the shortest description of its dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.llm.parsing.guide import json_arguments
from ovserve.llm.parsing.registry import default
from tests.breadth import examples
from tests.llm.parsing.cuts import completion, cut, packets, result, tool

Call = tuple[str, dict[str, Any]]
Writer = Callable[[list[Call]], str]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def objects(calls: list[Call], key: str = "arguments", name: str = "name") -> list[str]:
    return [dumps({name: n, key: a}) for n, a in calls]


def listed(opener: str, closer: str, key: str = "arguments", name: str = "name") -> Writer:
    return lambda calls: opener + "[" + ", ".join(objects(calls, key, name)) + "]" + closer


def each(form: str) -> Writer:
    """One block per call; %n the name, %a the arguments, %i the index."""

    def write(calls: list[Call]) -> str:
        blocks = (form.replace("%i", str(i)).replace("%n", n) for i, (n, _) in enumerate(calls))
        return "".join(b.replace("%a", dumps(a)) for b, (_, a) in zip(blocks, calls, strict=True))

    return write


def bare_text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def tags(block: str, call: str, parameter: str, inner: str = "", outer: tuple[str, str] = ("", "")) -> Writer:
    """Tags around name, keys and values; `%` is where each goes."""

    def write(calls: list[Call]) -> str:
        blocks = []
        for name, arguments in calls:
            params = "".join(
                parameter.replace("%k", k)
                .replace("%s", str(isinstance(v, str)).lower())
                .replace("%t", "string" if isinstance(v, str) else "object")
                .replace("%v", bare_text(v))
                + inner
                for k, v in arguments.items()
            )
            blocks.append(block.replace("%c", call.replace("%n", name).replace("%p", inner + params)))
        return outer[0] + "\n".join(blocks) + outer[1]

    return write


def python_calls(opener: str, closer: str, separator: str) -> Writer:
    def write(calls: list[Call]) -> str:
        written = (n + "(" + ", ".join(f"{k}={v!r}" for k, v in a.items()) + ")" for n, a in calls)
        return opener + separator.join(written) + closer

    return write


def gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return dumps(value)


V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%n\n```json\n%a\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>%n<｜tool▁sep｜>%a<｜tool▁call▁end｜>"
KIMI = "<|tool_call_begin|>functions.%n:%i<|tool_call_argument_begin|>%a<|tool_call_end|>"
KIMI_3 = '<|open|>argument key="%k" type="%t"<|sep|>%v<|close|>argument<|sep|>'
M3 = "]<]minimax[>["
QWEN = "<function=%n>%p</function>"
DSML = '<｜DSML｜parameter name="%k" string="%s">%v</｜DSML｜parameter>'
ATEM = " to=%n<|message|><atem:function_calls>\n%c\n</atem:function_calls><|eom|>"


def around(opener: str, inner: Writer, closer: str) -> Writer:
    return lambda calls: opener + inner(calls) + closer


WRITERS: dict[str, Writer] = {
    "hermes3": lambda calls: "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects(calls)),
    "qwen25coder": lambda calls: "\n".join(f"<tool_call>\n{{{o}}}\n</tool_call>" for o in objects(calls)),
    "ernie45": lambda calls: "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects(calls)),
    "llama3": lambda calls: "<|python_tag|>" + "; ".join(objects(calls, "parameters")),
    "phi4": listed("functools", ""),
    "granite": listed("<|tool_call|>", ""),
    "mistral": listed("[TOOL_CALLS] ", ""),
    "xlam": listed("", ""),
    "hunyuan": listed("<tool_calls>", "</tool_calls>"),
    "jamba": listed("<tool_calls>\n", "\n</tool_calls>"),
    "apriel": listed("<tool_calls>", "</tool_calls>"),
    "nemotron_nano_v2": listed("<TOOLCALL>", "</TOOLCALL>"),
    "command_r7b": listed("<|START_ACTION|>", "<|END_ACTION|>", "parameters", "tool_name"),
    "internlm": lambda calls: "".join(
        f"<|action_start|><|plugin|>\n{o}<|action_end|>" for o in objects(calls, "parameters")
    ),
    "apertus": lambda calls: (
        "<|tools_prefix|>[" + ", ".join(dumps({n: a}) for n, a in calls) + "]<|tools_suffix|>"
    ),
    "devstral": each("[TOOL_CALLS]%n[ARGS]%a"),
    "functionary_v31": each("<function=%n>%a</function>"),
    "functionary_v32": lambda calls: each(">>>%n\n%a")(calls).removeprefix(">>>"),
    "gigachat3": each("<|message_sep|>\n\nfunction call<|role_sep|>\n" + '{"name": "%n", "arguments": %a}'),
    "gigachat31": each('<|function_call|>{"name": "%n", "arguments": %a}'),
    "gigachat35": around(
        "<｜GCML｜tool_calls>",
        tags("%c", '<｜GCML｜invoke name="%n">%p</｜GCML｜invoke>', DSML.replace("DSML", "GCML")),
        "</｜GCML｜tool_calls>",
    ),
    "kimi_k2": around("<|tool_calls_section_begin|>", each(KIMI), "<|tool_calls_section_end|>"),
    "deepseek_v3": around("<｜tool▁calls▁begin｜>", each(V3), "<｜tool▁calls▁end｜>"),
    "deepseek_v31": around("<｜tool▁calls▁begin｜>", each(V31), "<｜tool▁calls▁end｜>"),
    "gptoss": each("<|channel|>commentary to=functions.%n <|constrain|>json<|message|>%a<|call|>"),
    "qwen3coder": tags("<tool_call>\n%c\n</tool_call>", QWEN, "<parameter=%k>\n%v\n</parameter>", "\n"),
    "seed_oss": tags(
        "<seed:tool_call>\n%c\n</seed:tool_call>", QWEN, "<parameter=%k>\n%v\n</parameter>", "\n"
    ),
    "minicpm5": tags("%c", '<function name="%n">%p</function>', '<param name="%k">\n%v\n</param>'),
    "minimax_m2": tags(
        "<minimax:tool_call>\n%c\n</minimax:tool_call>",
        '<invoke name="%n">%p</invoke>',
        '<parameter name="%k">\n%v\n</parameter>',
        "\n",
    ),
    "minimax_m3": tags(
        f"{M3}<tool_call>\n%c\n{M3}</tool_call>",
        f'{M3}<invoke name="%n">%p{M3}</invoke>',
        f"{M3}<%k>%v{M3}</%k>",
    ),
    "kimi_k3": tags(
        "<|open|>tools<|sep|>%c<|close|>tools<|sep|>",
        '<|open|>call tool="%n" index="1"<|sep|>%p<|close|>call<|sep|>',
        KIMI_3,
    ),
    "step3": tags(
        "<｜tool_call_begin｜>function<｜tool_sep｜>%c<｜tool_call_end｜>",
        '<steptml:invoke name="%n">%p</steptml:invoke>',
        '<steptml:parameter name="%k">\n%v\n</steptml:parameter>',
        "",
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    ),
    "deepseek_v32": tags(
        "%c",
        '<｜DSML｜invoke name="%n">%p</｜DSML｜invoke>',
        DSML,
        "\n",
        ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
    ),
    "onyx": lambda calls: "".join(
        ATEM.replace("%n", c[0]).replace(
            "%c",
            tags(
                "%c",
                '<atem:invoke name="%n">%p</atem:invoke>',
                '<atem:parameter name="%k">%v</atem:parameter>',
                "\n",
            )([c]),
        )
        for c in calls
    ),
    "glm45": tags(
        "<tool_call>%c</tool_call>", "%n%p", "<arg_key>%k</arg_key>\n<arg_value>%v</arg_value>", "\n"
    ),
    "lfm2": python_calls("<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "pythonic": python_calls("[", "]", ", "),
    "olmo3": python_calls("<function_calls>\n", "\n</function_calls>", "\n"),
    "gemma4": lambda calls: "".join(f"<|tool_call>call:{n}{gemma(a)}<tool_call|>" for n, a in calls),
}

# No tag characters where the format has no way to write them: untyped text ends at its closing tag.
# And the word null is null where a string may be that.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<|\r\x00"), max_size=20).filter(
    lambda text: text.strip() not in ("null", "None")
)
ANY_TEXT = st.one_of(
    TEXT, st.sampled_from(["</tool_call>", "]", "};{", "[TOOL_CALLS]", '"', "\\", "\\\\n", "it's"])
)
KEYS = st.sampled_from(["s", "text", "other"])
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.text("abcXYZ 09_-éß🦆", max_size=8)
INNER = st.recursive(
    st.none() | st.booleans() | NUMBERS | PLAIN,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("abc", min_size=1), v, max_size=3),
    max_leaves=6,
)
TOOLS = [
    tool(
        name,
        s={"type": "string"},
        text={"type": "string"},
        other={"type": ["string", "null"]},
        n={"type": "number"},
        b={"type": "boolean"},
        o={"type": "object"},
        l={"type": "array"},
    )
    for name in ("get_weather", "send", "track-parcel", "calendar.create")
]
NAMES = st.sampled_from([t["function"]["name"] for t in TOOLS])


def arguments(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda strings, rest: strings | rest,
        st.dictionaries(KEYS, text, max_size=3),
        st.fixed_dictionaries(
            {},
            optional={
                "n": NUMBERS,
                "b": st.booleans(),
                "o": st.dictionaries(st.text("abc", min_size=1), INNER, max_size=3),
                "l": st.lists(INNER, max_size=3),
            },
        ),
    )


# Their strings have no quotes.
BARE_TEXT = {
    name
    for name in WRITERS
    if (guide := default().tool(name).guide) and guide.arguments is not json_arguments
} - {"lfm2", "olmo3", "pythonic"}
# Text before these is the answer: without a marker a call is one only at the very start.
UNMARKED = {"xlam", "pythonic"}
FRAMED = {name for name in WRITERS if getattr(default().tool(name), "framed", False)}


def test_every_dialect_is_written() -> None:
    assert set(WRITERS) == set(default().tool_names)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(WRITERS))
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(name: str, data: st.DataObject) -> None:
    text = TEXT if name in BARE_TEXT else ANY_TEXT
    if name in ("lfm2", "pythonic", "olmo3"):
        # `it's fine` unescaped is read as well, at the price of a rule that such a quote and a comma fool.
        text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20)
    names = st.sampled_from(["get_weather", "send"]) if name in ("lfm2", "pythonic", "olmo3") else NAMES
    calls = data.draw(st.lists(st.tuples(names, arguments(text)), min_size=1, max_size=3), label="calls")
    before = "" if name in UNMARKED | FRAMED else data.draw(st.sampled_from(["", "Sure, a moment."]))
    answer = before + WRITERS[name](calls)
    cuts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4), label="cuts")
    for pieces in ([answer], list(answer), cut(answer, cuts)):
        content, _, found = result(pieces, name, None, TOOLS)
        assert content == before
        assert [(n, json.loads(a)) for n, a in found] == calls


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_call_after_thinking_and_between_texts(name: str) -> None:
    if name in UNMARKED | FRAMED | {"llama3", "devstral"}:
        pytest.skip("its calls have a fixed place")
    written = WRITERS[name]([("get_weather", {"s": "Oslo"})])
    answer = f"<think>\nHm.\n</think>\n\nLooking.\n\n{written} Looked."
    for pieces in ([answer], list(answer)):
        content, reasoning, calls = result(pieces, name, "qwen3", TOOLS)
        assert content == "Looking.\n\n Looked."
        assert reasoning == "Hm."
        assert [(n, json.loads(a)) for n, a in calls] == [("get_weather", {"s": "Oslo"})]


@pytest.mark.parametrize("name", sorted(set(WRITERS) - UNMARKED))
def test_a_call_cut_anywhere_loses_no_text(name: str) -> None:
    """Whatever the place of the cut: no exception, and words before the call stay."""
    written = WRITERS[name]([("get_weather", {"s": "Oslo"}), ("get_weather", {"n": 5})])
    framed = name in FRAMED
    answer = written if framed else f"Before.\n{written}"
    for end in range(len(answer)):
        for limit in (False, True):
            content, _, calls = result([answer[:end]], name, None, TOOLS, cut_off=limit)
            assert len(calls) <= 2
            if not framed:
                assert content.startswith("Before."[:end])
            # Of the last call an answer may have ended within a string, which the client is to see.
            assert all(isinstance(json.loads(a), dict) for _, a in calls[:-1])
            assert not re.search(r"\x00", content)


# Dialects whose first characters anybody may write: until the name of a tool has come, a call may be an answer.
UNMARKED_START = {"llama3": len('{"name": "get_weather"'), "xlam": len('[{"name": "get_weather"'),
                  "pythonic": len("[get_weather("), "phi4": len("functools["), "functionary_v32": len("get_weather")}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(WRITERS))
@pytest.mark.parametrize("stop", [None, "stop"])
def test_a_cut_call_leaves_no_markup_in_the_answer(name: str, stop: str | None) -> None:
    """Cut by a token limit or by a stop string, at any place of the first call or of the second."""
    written = WRITERS[name]([("get_weather", {"s": "Oslo"}), ("send", {"n": 5})])
    framed = name in FRAMED
    before = "" if framed or name in {*UNMARKED_START} - {"phi4"} else "Before."
    calls_seen = set()
    for end in range(1, len(written) + 1):
        text = before + written[:end]
        for pieces in ([text], list(text)):
            made = packets(pieces, name, None, TOOLS, cut_off=stop is None, stop_string=stop)
            answer = completion(made)
            assert answer.content == "".join(parsed.content for parsed in made), "stream and whole differ"
            left = answer.content.removeprefix(before)
            whole = [call for call in answer.tool_calls if is_object(call.arguments)]
            if end <= max(2, UNMARKED_START.get(name, 0)):
                assert left in ("", written[:end])
            else:
                assert left.strip() == "" or (whole and len(left.strip()) <= 2), repr(left)
            assert answer.finish_reason == (
                "length"
                if stop is None
                else "tool_calls"
                if whole and len(whole) == len(answer.tool_calls)
                else "stop"
            )
        calls_seen.add(len(whole))
    assert calls_seen >= {0, 2} or name == "pythonic"


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize(("name", "text"), [
    ("gptoss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"),
    ("onyx", " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>"),
])  # fmt: skip
def test_a_cut_header_is_no_part_of_the_answer(name: str, text: str) -> None:
    for end in range(1, len(text) + 1):
        for pieces in ([text[:end]], list(text[:end])):
            content, reasoning, calls = result(pieces, name, name, TOOLS, cut_off=True)
            assert content.strip().rstrip("<|") in ("", "Y", "Ye", "Yes", "Yes."), text[:end]
            assert reasoning.rstrip("<|") in ("", "h", "hm"), text[:end]
            assert not calls

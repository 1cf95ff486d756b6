"""OutputParser and the fold: a stream shows what a whole answer says; a broken call can never be carried out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ovserve.llm.output import Completion, Content, FoldedChoice, Parsed, ToolCallDelta
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.request import Delta, Parsing, ToolPolicy
from tests.llm.parsing.cuts import is_json

TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("f", "g")
)
AUTO = ToolPolicy(TOOLS, "auto", ("f", "g"))
HERMES = Parsing("hermes3", "qwen3")
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": {"b": "}"}}}\n</tool_call>'
CALL_G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
BROKEN = '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'


def parse(
    pieces: list[str], parsing: Parsing = HERMES, tools: ToolPolicy | None = AUTO, finish: str = "stop"
) -> list[Parsed]:
    parser = OutputParser(parsing, tools)
    out = [parser.feed(Delta(prompt_tokens=3, max_tokens=9))]
    out += [parser.feed(Delta(piece, 1)) for piece in pieces[:-1]]
    return [*out, parser.feed(Delta(pieces[-1], 1, finish, last=True))]


def fold(parsed: list[Parsed]) -> FoldedChoice:
    completion = Completion()
    for one in parsed:
        completion.add(one)
    (choice,) = completion.choices
    return choice


def as_client(parsed: list[Parsed]) -> dict[str, Any]:
    """What a client of a stream has in the end; it checks the indices."""
    seen: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for one in parsed:
        seen["content"] += one.content
        seen["reasoning"] += one.reasoning
        for piece in one.tool_calls:
            if piece.id is not None:
                assert piece.index == len(seen["calls"]), "indices have no gaps"
                seen["calls"].append([piece.name, ""])
            assert piece.index == len(seen["calls"]) - 1
            seen["calls"][-1][1] += piece.arguments
        seen["finish"] = one.finish_reason or seen["finish"]
    return seen


def whole(choice: FoldedChoice) -> dict[str, Any]:
    return {
        "content": choice.content,
        "reasoning": choice.reasoning,
        "calls": [[c.name, c.arguments] for c in choice.tool_calls],
        "finish": choice.finish_reason,
    }


def cuts(text: str) -> list[list[str]]:
    found = [[text], list(text)]
    rng = random.Random(text)
    for _ in range(20):
        places = sorted(rng.sample(range(1, len(text)), 6))
        found.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return found


@pytest.mark.parametrize(
    "text",
    [
        f"<think>hm</think>Text.\n{CALL_F}\n{CALL_G}",
        f"{CALL_F} and {CALL_G} after",
        "no call at all <tool_cal",
        "<think>never closed " + CALL_G,
    ],
)
def test_a_stream_is_the_whole_answer(text: str) -> None:
    expected = whole(fold(parse([text])))
    for pieces in cuts(text):
        parsed = parse(pieces)
        assert as_client(parsed) == expected == whole(fold(parsed))


def test_the_finish_reason_tells_of_calls() -> None:
    assert whole(fold(parse([CALL_F])))["finish"] == "tool_calls"
    assert whole(fold(parse(["hello"])))["finish"] == "stop"
    assert whole(fold(parse([CALL_F], finish="length")))["finish"] == "length"


@pytest.mark.parametrize("before", ["", CALL_G, "Text. "])
def test_a_broken_call_is_text_in_a_whole_answer_and_cannot_be_carried_out_in_a_stream(before: str) -> None:
    text = before + BROKEN
    expected = whole(fold(parse([text])))
    assert BROKEN in expected["content"]
    good = [["g", "{}"]] if before == CALL_G else []
    assert expected["calls"] == good
    assert expected["finish"] == ("tool_calls" if good else "stop")
    shown = 0
    for pieces in cuts(text):
        parsed = parse(pieces)
        assert whole(fold(parsed)) == expected
        client = as_client(parsed)
        assert client["content"] == expected["content"]
        assert client["finish"] == expected["finish"]
        assert [c for c in client["calls"] if is_json(c[1])] == good, "only calls that stand can be read"
        shown += len(client["calls"]) > len(good)
    assert shown, "no cut showed the call before it broke; the test proves nothing"


def test_a_good_call_after_a_broken_one_has_the_next_index() -> None:
    for pieces in cuts(BROKEN + "\n" + CALL_G):
        parsed = parse(pieces)
        assert [c for c in as_client(parsed)["calls"] if is_json(c[1])] == [["g", "{}"]]
        assert whole(fold(parsed))["calls"] == [["g", "{}"]]


def test_a_call_cut_by_length_keeps_what_there_is() -> None:
    text = CALL_F[: CALL_F.index('"}"')]
    for pieces in cuts(text):
        client = as_client(parse(pieces, finish="length"))
        assert (client["calls"], client["finish"]) == ([["f", '{"a": {"b": ']], "length")


def test_complete_arguments_go_out_even_if_the_length_ends_the_rest() -> None:
    client = as_client(parse(list('<tool_call>{"name": "f", "arguments": {"a": 1}'), finish="length"))
    assert client["calls"] == [["f", '{"a": 1}']]


def test_arguments_stream_but_for_the_last_brace() -> None:
    parser = OutputParser(HERMES, AUTO)
    sent = "".join(
        piece.arguments
        for char in CALL_F[: CALL_F.index("\n</tool_call>") - 1]
        for piece in parser.feed(Delta(char, 1)).tool_calls
    )
    assert sent == '{"a": {"b": "', "a value that begins with a brace may lack its closing quote"
    end = parser.feed(Delta("}", 1))
    assert [p.arguments for p in end.tool_calls] == ['}"}}'], "the call is certain, and at once"
    parser = OutputParser(HERMES, AUTO)
    plain = '<tool_call>{"name": "f", "arguments": {"text": "Hello world'
    sent = [p.arguments for char in plain for p in parser.feed(Delta(char, 1)).tool_calls]
    assert sent[-6:] == list(" world"), "text streams by the character"


def test_one_call_only_when_calls_are_not_parallel() -> None:
    one = ToolPolicy(TOOLS, "auto", ("f", "g"), parallel=False)
    for pieces in cuts(BROKEN + CALL_F + CALL_G + " after"):
        parsed = parse(pieces, tools=one)
        assert whole(fold(parsed))["calls"] == [["f", '{"a": {"b": "}"}}']]
        assert whole(fold(parsed))["content"].endswith("after")


def test_markup_stays_text_without_tools_or_with_choice_none() -> None:
    for tools in (None, ToolPolicy(TOOLS, "none")):
        assert whole(fold(parse([CALL_G], tools=tools))) == {
            "content": CALL_G, "reasoning": "", "calls": [], "finish": "stop",
        }  # fmt: skip


def test_an_end_of_thinking_without_a_start() -> None:
    parsing = Parsing(None, "minicpm5")
    text = "I wonder.</think>\nYes."
    expected = {"content": "Yes.", "reasoning": "I wonder.", "calls": [], "finish": "stop"}
    for pieces in cuts(text):
        parsed = parse(pieces, parsing, None)
        assert whole(fold(parsed)) == expected
        client = as_client(parsed)
        assert sorted(client["content"] + client["reasoning"]) in (sorted("I wonder.Yes."), sorted(text))
    assert as_client(parse([text], parsing, None)) == expected, "nothing was sent too early"


def test_choices_do_not_mix() -> None:
    parser = OutputParser(HERMES, AUTO)
    half = len(CALL_F) // 2
    for part in (CALL_F[:half], CALL_F[half:]):
        for index in (0, 1):
            end = "stop" if part == CALL_F[half:] else None
            parsed = parser.feed(Delta(part, 1, end, index=index))
            assert parsed.index == index
            assert parsed.finish_reason == ("tool_calls" if end else None)


@pytest.mark.parametrize(
    ("pieces", "inside", "tokens"),
    [
        (["<think>", "a", " b", "</think>", "\n\n", "yes"], False, 4),
        (["<", "think", ">", "a", "</", "think", ">", "yes"], False, 7),
        (["a", " b", "</think>", "yes"], True, 3),
        (["<think>", "a", " b"], False, 3),
        (["yes", " no"], False, 0),
        (["<th", "e"], False, 0),
        (["<think>", "draft ", CALL_G, " more", "</think>", "yes"], False, 5),
        (["<think>", "forgot to close ", CALL_G], False, 2),
        (["ab</think>cdefghijk", "l"], True, 1),  # 10 of 19 characters of one token
    ],
)
def test_reasoning_tokens(pieces: list[str], inside: bool, tokens: int) -> None:
    completion = Completion()
    for one in parse(pieces, Parsing("hermes3", "qwen3", inside)):
        completion.add(one)
    assert (completion.reasoning_tokens, completion.completion_tokens) == (tokens, len(pieces))


def test_reasoning_tokens_of_a_framed_dialect() -> None:
    pieces = ["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>",
              "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "yes"]  # fmt: skip
    parsed = parse(pieces, Parsing("gptoss", "gptoss"), None)
    assert sum(one.reasoning_tokens for one in parsed) == 5


def order(parsed: list[Parsed]) -> list[str]:
    """Texts and names of calls as a stream shows them; neighbouring texts joined."""
    found: list[str] = []
    for part in (part for delta in parsed for part in delta.parts):
        match part:
            case Content(text) if found and found[-1].startswith("text "):
                found[-1] += text
            case Content(text):
                found.append(f"text {text}")
            case ToolCallDelta(_, _, str(name)):
                found.append(name)
    return found


def test_text_between_two_calls_stays_between_them_however_deltas_are_merged() -> None:
    text = f"One. {CALL_F} Two. {CALL_G} Three."
    for pieces in ([text], list(text), [text[:40], text[40:]]):
        parsed = parse(pieces)
        assert [" ".join(word.split()) for word in order(parsed)] == [
            "text One.",
            "f",
            "text Two.",
            "g",
            "text Three.",
        ]
        parts = fold(parsed).parts
        assert [p.strip() if isinstance(p, str) else p.name for p in parts] == [
            "One.",
            "f",
            "Two.",
            "g",
            "Three.",
        ]
        assert sum(delta.tokens for delta in parsed) == len(pieces)


def test_a_second_call_that_a_limit_cuts_is_no_content() -> None:
    text = f"{CALL_F}\n{CALL_G}"
    begun = text.index('"g"')  # before the name of the second call is there
    for end in range(len(CALL_F), begun):
        for pieces in ([text[:end]], list(text[:end])):
            parsed = parse(pieces, finish="length")
            assert as_client(parsed) == whole(fold(parsed))
            assert as_client(parsed)["content"].strip() in ("", "<"), text[:end]
            assert [name for name, _ in as_client(parsed)["calls"]] == ["f"]


def test_a_stop_string_inside_a_call_leaves_what_came_and_no_markup() -> None:
    for stopped, calls, finish in (
        ("<tool_call>\n", [], "stop"),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1', [["f", '{"a": 1']], "stop"),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}', [["f", '{"a": 1}']], "tool_calls"),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n', [["f", '{"a": 1}']], "tool_calls"),
    ):
        for pieces in ([stopped], list(stopped)):
            parser = OutputParser(HERMES, AUTO)
            parsed = [parser.feed(Delta(piece, 1)) for piece in pieces]
            parsed.append(parser.feed(Delta("", 0, "stop", last=True, stop_string="x")))
            expected = {"content": "", "reasoning": "", "calls": calls, "finish": finish}
            assert as_client(parsed) == whole(fold(parsed)) == expected

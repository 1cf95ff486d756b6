"""The scanner's promises: little is withheld, calls are announced early, nothing is lost at a cut, time is linear."""

from __future__ import annotations

import json
import time

import pytest

from ovserve.llm.parsing import make_parser, reasoning_closed
from ovserve.llm.parsing.output import (
    Content,
    ContentWasReasoning,
    Reasoning,
    ToolCallArguments,
    ToolCallBroken,
    ToolCallStart,
)
from ovserve.llm.parsing.registry import default
from tests.llm.parsing.cuts import events, result, tool

WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'


def seen(
    text: str, name: str | None = "hermes3", reasoning: str | None = "qwen3", **kwargs: bool
) -> list[object]:
    parser = make_parser(name, reasoning, [], kwargs.get("implicit", False))
    return [event for char in text for event in parser.feed(char)]


def test_text_goes_out_at_once() -> None:
    parser = make_parser("hermes3", "qwen3", [], False)
    assert parser.feed("Hello") == [Content("Hello")]
    assert parser.feed(" wor") == [Content(" wor")]
    assert parser.feed("ld <tool") == [Content("ld")], "the blank may precede a call"
    assert parser.feed("box>") == [Content(" <toolbox>")]


@pytest.mark.parametrize("name", default().tool_names)
def test_no_more_is_withheld_than_a_marker(name: str) -> None:
    """Prose with the first characters of every marker in it."""
    prose = "Some <words, <| and `<` or [brackets (of [TOOL and func and call: it, `` and to=me < done.\n" * 3
    longest = max(map(len, (*default().tool(name).markers, *default().tool(name).erase, "<|channel|>")))  # type: ignore[union-attr]
    parser = make_parser(name, None, [], False)
    gone = 0
    for given, char in enumerate(prose, 1):
        gone += sum(len(e.text) for e in parser.feed(char) if isinstance(e, Content))
        assert given - gone <= longest + 1


def test_the_name_goes_out_when_it_closes_and_arguments_as_they_grow() -> None:
    before_arguments = WEATHER[: WEATHER.index('"arguments"')]
    assert [type(e) for e in seen(before_arguments)] == [ToolCallStart]
    found = seen(WEATHER[: WEATHER.index("Oslo") + 2])
    assert "".join(e.text for e in found if isinstance(e, ToolCallArguments)) == '{"city": "Os'


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("qwen3coder", "<tool_call>\n<function=get_weather>\n<parameter="),
        ("devstral", "[TOOL_CALLS]get_weather[ARGS]"),
        ("gptoss", "<|channel|>commentary to=functions.get_weather<|message|>"),
        ("gemma4", "<|tool_call>call:get_weather{"),
        ("kimi_k2", "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"),
        ("glm45", "<tool_call>get_weather\n<arg_key>"),
    ],
)
def test_other_dialects_announce_as_early(name: str, start: str) -> None:
    assert [type(e) for e in seen(start, name, None)] == [ToolCallStart]


def test_a_broken_call_is_content_in_a_whole_answer_and_known_in_a_stream() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'
    found = events(list(text), "hermes3", None, [])
    assert ToolCallBroken(0) in found
    assert result(list(text), "hermes3", None, []) == (text, "", [])


def test_a_broken_call_does_not_swallow_the_next() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'
    content, _, calls = result([broken + "\n" + WEATHER], "hermes3", None, [])
    assert content == broken
    assert [name for name, _ in calls] == ["get_weather"]


def test_a_cut_by_length_sends_what_there_is() -> None:
    text = WEATHER[: WEATHER.index("Oslo") + 2]
    assert result(list(text), "hermes3", None, [], cut_off=True) == (
        "",
        "",
        [("get_weather", '{"city": "Os')],
    )
    assert result(list(text), "hermes3", None, []) == result(list(text), "hermes3", None, [], cut_off=True)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        (
            "qwen3coder",
            "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nHel",
            '{"a": 1, "b": "Hel',
        ),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key><arg_value>Hel", '{"a": "Hel'),
    ],
)
def test_a_cut_value_never_looks_complete(name: str, text: str, arguments: str) -> None:
    assert result([text], name, None, [], cut_off=True) == ("", "", [("f", arguments)])
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(arguments)


def test_talk_about_a_tag_does_not_hold_up_thinking() -> None:
    found = seen("<think>A <tool_call> tag, then")
    assert "".join(e.text for e in found if isinstance(e, Reasoning)) == "A <tool_call> tag, then"


def test_an_end_of_thinking_without_a_start() -> None:
    """MiniCPM5 leaves the start out; of the others a prompt knows whether it opened the thinking."""
    text = "hm\n</think>\nyes"
    assert ContentWasReasoning() in events(list(text), "hermes3", "minicpm5", [])
    assert result(list(text), "hermes3", "minicpm5", []) == ("yes", "hm", [])
    for reasoning in sorted(set(default().reasoning_names) - {"minicpm5"}):
        dialect = default().reasoning(reasoning)
        assert dialect is not None
        if dialect.always or dialect.framed:
            continue
        said = text.replace("</think>", dialect.ends[0])
        for pieces in ([said], list(said)):
            assert result(pieces, "hermes3", reasoning, []) == (said, "", []), reasoning


@pytest.mark.parametrize("reasoning", ["qwen3", "minicpm5", "glm45"])
def test_thinking_that_begins_late_is_text_whole_and_streamed(reasoning: str) -> None:
    text = "Well. <think>a</think>b"
    for pieces in ([text], list(text)):
        assert result(pieces, "hermes3", reasoning, []) == (text, "", [])
        assert not [e for e in events(pieces, "hermes3", reasoning, []) if isinstance(e, ContentWasReasoning)]


@pytest.mark.parametrize("reasoning", ["qwen3", "minicpm5"])
def test_an_end_of_thinking_is_text_where_the_prompt_has_closed_it(reasoning: str) -> None:
    assert reasoning_closed(reasoning, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not reasoning_closed(reasoning, "<|im_start|>assistant\n")
    text = "Models write </think> at the end of it."
    for pieces in ([text], list(text)):
        assert result(pieces, None, reasoning, [], closed=True) == (text, "", [])


def test_end_tokens_go_at_the_end_and_stay_in_the_middle() -> None:
    parser = make_parser(None, None, None, False, end_tokens=("<|end|>",))
    found = parser.feed("a <|end|> b<|end|>\n") + parser.finish()
    assert "".join(e.text for e in found if isinstance(e, Content)) == "a <|end|> b"


def test_a_run_of_end_tokens_is_linear() -> None:
    token = "<|im_end|>\n"
    small = min(seconds("hermes3", f"a{token * 500}b", 500) for _ in range(5))
    assert min(seconds("hermes3", f"a{token * 16_000}b", 16_000) for _ in range(2)) < 180 * small + 0.05
    text = token * 3000
    assert result([f"a{text}b"], "hermes3", None, [])[0] == f"a{text}b"
    assert result([f"a{text}"], "hermes3", None, [])[0] == "a"


def test_ids_are_nine_alphanumerics_unless_the_model_gives_one() -> None:
    text = "[TOOL_CALLS]f[CALL_ID]q7Xv09aZk[ARGS]{}[TOOL_CALLS]g[ARGS]{}"
    first, second = (e.id for e in events([text], "devstral") if isinstance(e, ToolCallStart))
    assert first == "q7Xv09aZk"
    assert len(second) == 9
    assert second.isalnum()


def test_arguments_keep_the_models_spelling() -> None:
    arguments = '{"big": 9007199254740993, "e": 1E6, "z": 1.10, "dup": [1,  2]}'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert result([text], "hermes3", None, [])[2] == [("f", arguments)]
    text = "<function=f><parameter=n>1.10</parameter></function>"
    assert result([text], "qwen3coder", None, [tool("f", n={"type": "number"})])[2] == [("f", '{"n": 1.10}')]


def test_blanks_around_calls() -> None:
    assert result(["A. ", WEATHER, "B"], "hermes3", None, [])[0] == "A. B"
    assert result(["A.\n", WEATHER, "\n", WEATHER, "\n"], "hermes3", None, [])[0] == "A."
    assert result(["\n", WEATHER, "\n"], "hermes3", None, [])[0] == ""
    assert result(["<think>a</think>\n\n", WEATHER, "B"], "hermes3", "qwen3", [])[0] == "B"


def test_depth_is_no_exception() -> None:
    deep = "[" * 100_000
    for name, text in (
        ("hermes3", f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}'),
        ("lfm2", f"<|tool_call_start|>[f(a={deep}"),
        ("gemma4", f"<|tool_call>call:f{{a:{deep}"),
        ("qwen3coder", f"<function=f><parameter=a>{deep}</parameter></function>"),
    ):
        content, _, calls = result([text], name, None, [])
        assert content or calls


def seconds(name: str, text: str, pieces: int) -> float:
    size = len(text) // pieces
    parser = make_parser(name, None, [], False)
    began = time.process_time()
    for at in range(0, len(text), size):
        parser.feed(text[at : at + size])
    parser.finish()
    return time.process_time() - began


@pytest.mark.long
@pytest.mark.parametrize("name", default().tool_names)
def test_noise_of_markers_is_linear(name: str) -> None:
    """32 times the text may cost 32 times the CPU time, not 1024 times. The bound is the geometric mean."""
    dialect = default().tool(name)
    assert dialect is not None
    noise = "".join(
        (*dialect.markers, dialect.bare, '{"name": "a", "arguments": {"x": "', "f(a='", "<parameter=x>")
    )
    small = min(seconds(name, noise * 30, 250) for _ in range(5))
    bound = 180 * small + 0.05
    assert any(seconds(name, noise * 960, 8000) < bound for _ in range(2))

"""Parser names: unknown, doubled, from a third party."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ovserve.errors import LoadError
from ovserve.llm.parsing import make_parser, registry
from ovserve.llm.parsing.cursor import Cursor, Steps
from ovserve.llm.parsing.dialect import ToolDialect
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.registry import Registry, default
from tests.llm.parsing.cuts import result


class Shout(ToolDialect):
    name = "shout"
    markers = ("CALL ",)

    def matches(self, template: str) -> bool:
        return "<tool_call>" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect("CALL ")
        out.start_call("shout")
        out.arguments("{}")
        out.end_call()


class Faulty(Shout):
    name = "faulty"

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect("CALL ")
        raise ZeroDivisionError("a third party's fault")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        LoadError, match=r"tool parser 'hermes' is not known \(did you mean hermes3\?\)"
    ) as exc:
        make_parser("hermes", None, None, False)
    assert all(name in str(exc.value) for name in ("none", "llama3", "minicpm5", "glm45"))
    with pytest.raises(LoadError, match=r"reasoning parser 'x' is not known; known: none, .*gemma4.*qwen3"):
        make_parser(None, "x", None, False)


@pytest.mark.parametrize("off", [None, "", "none"])
def test_none_switches_off(off: str | None) -> None:
    parser = make_parser(off, off, [], False)
    assert parser.feed("<think>a</think><tool_call>{}") != []


def test_the_names_of_ovms_are_all_there() -> None:
    known = default()
    tools = "llama3 hermes3 phi4 mistral gptoss qwen3coder devstral lfm2 gemma4 onyx minicpm5"
    assert set(tools.split()) <= set(known.tool_names)
    assert {"qwen3", "gemma4", "gptoss", "onyx", "minicpm5", "lfm2"} <= set(known.reasoning_names)


def test_one_name_one_dialect() -> None:
    known = Registry([Shout])
    with pytest.raises(LoadError, match="'shout' is defined twice"):
        known.add(Shout)


def test_a_nameless_dialect_is_refused() -> None:
    with pytest.raises(LoadError, match="has no name"):
        Registry([type("Mute", (ToolDialect,), {})])


def entry_points(loaded: Any) -> Any:
    return lambda group: [SimpleNamespace(load=lambda: loaded)] if group == "ovserve.parsers" else []


def test_a_third_party_dialect_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", entry_points(Shout))
    known = Registry(registry.TOOLS)
    known.add_entry_points()
    assert known.detect("<tool_call></tool_call>")[0] == "shout"
    parser = make_parser("shout", None, [], False, registry=known)
    assert [type(e).__name__ for e in parser.feed("CALL ")] == ["ToolCallStart", "ToolCallArguments"]


def test_an_entry_point_that_is_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", entry_points("a string"))
    with pytest.raises(LoadError, match="ovserve.parsers"):
        Registry().add_entry_points()


def test_a_dialects_fault_leaves_the_text() -> None:
    parser = make_parser("faulty", None, [], False, registry=Registry([Faulty]))
    found = parser.feed("before CALL after") + parser.feed(" and on") + parser.finish()
    assert isinstance(parser.failure, ZeroDivisionError)
    text = "".join(e.text for e in found)  # type: ignore[union-attr]
    assert text == "before CALL after and on"


def test_every_alias_reads_thinking() -> None:
    for name in ("minimax_m2", "step3", "kimi_k2", "olmo3", "deepseek_v31", "nemotron_nano_v2"):
        assert result(["<think>a</think>b"], None, name)[:2] == ("b", "a")

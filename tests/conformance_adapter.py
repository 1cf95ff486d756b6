"""The vectors' Adapter over the real parsers; adds no logic. Run by `conformance.py` and tests/llm/parsing."""

from __future__ import annotations

from typing import Any

from ovserve.llm.parsing import (
    Content,
    Event,
    Reasoning,
    TextParser,
    ToolCallArguments,
    ToolCallStart,
    fold,
    make_parser,
)


def parser_for(v: dict[str, Any]) -> TextParser:
    reasoning_only = v["kind"] == "reasoning"
    return make_parser(
        None if reasoning_only else v["parser"],
        v["parser"] if reasoning_only else v.get("reasoning_parser"),
        v.get("tools", []) if v.get("tools_available", True) else None,
        v.get("implicit_reasoning_start", False),
    )


def delta(event: Event) -> dict[str, Any] | None:
    match event:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, id, name):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name}}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return None  # a stream cannot take anything back


class Stream:
    def __init__(self, v: dict[str, Any]) -> None:
        self._parser = parser_for(v)

    def feed(self, text: str) -> list[dict[str, Any]]:
        return [d for event in self._parser.feed(text) if (d := delta(event))]

    def finish(self) -> list[dict[str, Any]]:
        return [d for event in self._parser.finish() if (d := delta(event))]


class Adapter:
    def parse(self, v: dict[str, Any]) -> dict[str, Any]:
        parser = parser_for(v)
        answer = fold([*parser.feed(v["model_output"]), *parser.finish()])
        return {
            "content": answer.content or None,
            "reasoning_content": answer.reasoning or None,
            "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.tool_calls],
        }

    def stream(self, v: dict[str, Any]) -> Stream:
        return Stream(v)

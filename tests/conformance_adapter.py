"""The vectors' Adapter over the real parser and the real fold. Run by `conformance.py` and tests/llm/parsing."""

from __future__ import annotations

from typing import Any

from ovserve.llm.output import Completion, Content, Parsed, Reasoning, ToolCallDelta
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.request import Delta, Parsing, ToolPolicy


def parser_for(v: dict[str, Any]) -> OutputParser:
    reasoning_only = v["kind"] == "reasoning"
    parsing = Parsing(
        None if reasoning_only else v["parser"],
        v["parser"] if reasoning_only else v.get("reasoning_parser"),
        v.get("implicit_reasoning_start") or False,
    )
    return OutputParser(parsing, policy(v.get("tools", [])) if v.get("tools_available", True) else None)


def policy(tools: list[dict[str, Any]]) -> ToolPolicy:
    names = tuple(str(tool.get("function", tool).get("name")) for tool in tools)
    # A name that no tool has keeps the parser on where there are no schemas.
    return ToolPolicy(tuple(tools), "auto", names or ("",))


def deltas(parsed: Parsed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in parsed.parts:
        match part:
            case Content(text):
                found.append({"content": text})
            case Reasoning(text):
                found.append({"reasoning_content": text})
            case ToolCallDelta(index, id, name, arguments):
                if id is not None:
                    call = {"index": index, "id": id, "type": "function", "function": {"name": name}}
                    found.append({"tool_calls": [call]})
                if arguments:
                    found.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    return found  # a stream cannot take anything back


class Stream:
    def __init__(self, v: dict[str, Any]) -> None:
        self._parser = parser_for(v)

    def feed(self, text: str) -> list[dict[str, Any]]:
        return deltas(self._parser.feed(Delta(text, 1)))

    def finish(self) -> list[dict[str, Any]]:
        return deltas(self._parser.feed(Delta("", 0, "stop", last=True)))


class Adapter:
    def parse(self, v: dict[str, Any]) -> dict[str, Any]:
        completion = Completion()
        completion.add(parser_for(v).feed(Delta(v["model_output"], 1, "stop", last=True)))
        (answer,) = completion.choices
        return {
            "content": answer.content or None,
            "reasoning_content": answer.reasoning or None,
            "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.tool_calls],
        }

    def stream(self, v: dict[str, Any]) -> Stream:
        return Stream(v)

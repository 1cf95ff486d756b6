"""What the parser tests share: one answer through a parser in given pieces, and ways to cut it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from ovserve.llm.parsing import Event, fold, make_parser

Result = tuple[str, str, list[tuple[str, str]]]


def events(
    pieces: Iterable[str],
    tool: str | None = None,
    reasoning: str | None = None,
    tools: list[dict[str, Any]] | None = (),  # type: ignore[assignment]
    *,
    implicit: bool = False,
    length_cut: bool = False,
) -> list[Event]:
    parser = make_parser(tool, reasoning, tools, implicit)
    found = [event for piece in pieces for event in parser.feed(piece)]
    found += parser.finish(length_cut)
    assert parser.failure is None, f"the safety net caught {parser.failure!r}"
    assert parser.feed("x" * 0) == [] == parser.finish(length_cut), "a finished parser is quiet"
    return found


def result(pieces: Iterable[str], *args: Any, **kwargs: Any) -> Result:
    answer = fold(events(pieces, *args, **kwargs))
    return answer.content, answer.reasoning, [(c.name, c.arguments) for c in answer.tool_calls]


def cut(text: str, sizes: Iterable[int]) -> Iterator[str]:
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            return
        yield text[at : at + size]
        at += size


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}

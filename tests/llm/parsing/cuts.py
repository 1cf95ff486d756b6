"""What the parser tests share: one answer through a parser in given pieces, and ways to cut it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ovserve.llm.output import Completion, FoldedChoice, Parsed
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.parsing import make_parser
from ovserve.llm.parsing.output import Event
from ovserve.llm.request import Delta, Parsing
from tests.conformance_adapter import policy

Result = tuple[str, str, list[tuple[str, str]]]


def events(
    pieces: Iterable[str],
    tool: str | None = None,
    reasoning: str | None = None,
    tools: list[dict[str, Any]] | None = (),  # type: ignore[assignment]
    *,
    implicit: bool = False,
    cut_off: bool = False,
) -> list[Event]:
    """What the scanner reports."""
    parser = make_parser(tool, reasoning, tools, implicit)
    found = [event for piece in pieces for event in parser.feed(piece)]
    found += parser.finish(cut_off)
    assert parser.failure is None, f"the safety net caught {parser.failure!r}"
    assert parser.feed("x" * 0) == [] == parser.finish(cut_off), "a finished parser is quiet"
    return found


def packets(
    pieces: Iterable[str],
    tool: str | None = None,
    reasoning: str | None = None,
    tools: list[dict[str, Any]] | None = (),  # type: ignore[assignment]
    *,
    implicit: bool = False,
    closed: bool = False,
    cut_off: bool = False,
    stop_string: str | None = None,
) -> list[Parsed]:
    """What the server makes of an answer: the admission, a packet for each piece, and the end."""
    parser = OutputParser(
        Parsing(tool, reasoning, implicit, closed), None if tools is None else policy(tools)
    )
    made = [parser.feed(Delta(prompt_tokens=3, max_tokens=100))]
    made += [parser.feed(Delta(piece, 1)) for piece in pieces]
    finish = "length" if cut_off else "stop"
    made.append(parser.feed(Delta("", 0, finish, last=True, stop_string=stop_string)))
    failure = parser._choices[0]._parser.failure
    assert failure is None, f"the safety net caught {failure!r}"
    return made


def completion(made: Iterable[Parsed]) -> FoldedChoice:
    whole = Completion()
    for parsed in made:
        whole.add(parsed)
    (choice,) = whole.choices
    return choice


def result(pieces: Iterable[str], *args: Any, **kwargs: Any) -> Result:
    """The whole answer that a client gets."""
    answer = completion(packets(pieces, *args, **kwargs))
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


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True

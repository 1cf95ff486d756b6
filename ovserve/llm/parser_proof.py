"""Proof of a dialect: each vector's text gives the expected answer, whole and streamed, however it is cut.

Called by `ovserve test-parser`. A file of vectors is a JSON array; what a vector has is written at the fields
of Vector, further keys are notes. The text goes through OutputParser and the fold, so what is proven is what
clients get.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from ovserve.errors import LoadError
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.parsing.registry import Registry, default
from ovserve.llm.request import Delta, Parsing, ToolPolicy


class Call(msgspec.Struct):
    name: str
    arguments: Any  # the value, or a string where the text itself is expected


class ExpectedOutput(msgspec.Struct, kw_only=True):
    content: str | None = None  # null is ""
    reasoning_content: str | None = None
    tool_calls: list[Call] = []


class Vector(msgspec.Struct, kw_only=True):
    name: str
    model_output: str  # as decoded with special tokens, without those that end the turn
    expect: ExpectedOutput
    accept_also: list[ExpectedOutput] = []
    parser: str | None = None  # absent: the one that is tested
    kind: Literal["tool", "reasoning", "both"] = "tool"  # which kind `parser` is; both: with reasoning_parser
    reasoning_parser: str | None = None
    tools: list[dict[str, Any]] = []  # of the request, in chat's form
    tools_available: bool = True  # false: none, or tool_choice none
    implicit_reasoning_start: bool = False  # the prompt ended inside the reasoning
    whitespace: Literal["exact", "strip", "collapse"] = "exact"  # how texts are compared
    stream_equivalent: bool = True  # false: a stream must not fail, and may differ
    chunks: list[str] | None = None  # a cut of its own to try
    chunks_hex: list[str] | None = None  # the same in UTF-8 bytes


class Seen(msgspec.Struct):
    """An answer as a client has it in the end."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]


_vectors = msgspec.json.Decoder(list[Vector])


def validate(
    name: str, files: Iterable[Path], say: Callable[[str], object], registry: Registry | None = None
) -> int:
    """Return how many vectors of dialect `name` fail; each is reported with its first difference.

    Raises LoadError for an unknown dialect, a file that is none of vectors, and files without one for `name`.
    """
    parsers = registry or default()
    if name not in (*parsers.tool_names, *parsers.reasoning_names):
        parsers.tool(name)  # raises with the known names
    run = failed = cuts = 0
    for file in files:
        for vector in _load(file):
            if vector.parser not in (None, name):
                continue
            run += 1
            cases, error = difference(name, vector)
            cuts += cases
            if error:
                failed += 1
                say(f"{file.name}: {vector.name}: {error}")
    if not run:
        raise LoadError(f"no vector for parser {name!r}")
    say(f"{name}: {run - failed} of {run} vectors hold, in {cuts} cuts")
    return failed


def _load(file: Path) -> list[Vector]:
    try:
        return _vectors.decode(file.read_bytes())
    except OSError as exc:
        raise LoadError(f"cannot be read: {exc.strerror}", file=str(file)) from exc
    except msgspec.MsgspecError as exc:
        raise LoadError(f"not a file of vectors: {exc}", file=str(file)) from exc


def difference(name: str, vector: Vector) -> tuple[int, str]:
    """Return how many cuts were tried, and the first difference."""
    whole = _whole(_parse(name, vector, [vector.model_output]))
    if not _accepted(whole, vector):
        return 1, f"whole: got {_show(whole)}, expected {msgspec.json.encode(vector.expect).decode()}"
    cases = 1
    for label, pieces in _cuts(vector):
        cases += 1
        parsed = _parse(name, vector, pieces)
        completion, streamed = _whole(parsed), _streamed(parsed)
        if completion != whole:
            return cases, f"{label}: got {_show(completion)}, whole {_show(whole)}"
        if vector.stream_equivalent and not _accepted(streamed, vector):
            return cases, f"{label}, streamed: got {_show(streamed)}, whole {_show(whole)}"
    return cases, ""


def _parse(name: str, vector: Vector, pieces: list[str]) -> list[Parsed]:
    reasoning_only = vector.kind == "reasoning"
    parsing = Parsing(
        None if reasoning_only else name,
        name if reasoning_only else vector.reasoning_parser,
        vector.implicit_reasoning_start,
    )
    names = tuple(str(tool.get("function", tool).get("name")) for tool in vector.tools)
    # A name that no tool has keeps the parser on where the vector gives no schemas.
    tools = ToolPolicy(tuple(vector.tools), "auto", names or ("",)) if vector.tools_available else None
    parser = OutputParser(parsing, tools)
    end = Delta("", 0, "stop", last=True)
    return [*(parser.feed(Delta(piece, 1)) for piece in pieces), parser.feed(end)]


def _cuts(vector: Vector) -> Iterator[tuple[str, list[str]]]:
    text = vector.model_output
    yield "every character", list(text)
    yield "every byte", _decoded([bytes([byte]) for byte in text.encode()])
    for at in range(1, len(text)):
        yield f"cut at {at}", [text[:at], text[at:]]
    if vector.chunks is not None:
        yield "its chunks", vector.chunks
    if vector.chunks_hex is not None:
        yield "its bytes", _decoded([bytes.fromhex(chunk) for chunk in vector.chunks_hex])


def _decoded(pieces: list[bytes]) -> list[str]:
    """Return the text in the engine's form, which never ends inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(piece) for piece in pieces]


def _whole(parsed: list[Parsed]) -> Seen:
    completion = Completion()
    for one in parsed:
        completion.add(one)
    (choice,) = completion.choices
    return Seen(choice.content, choice.reasoning, [(c.name, c.arguments) for c in choice.tool_calls])


def _streamed(parsed: list[Parsed]) -> Seen:
    result = Seen("", "", [])
    for one in parsed:
        result.content += one.content
        result.reasoning += one.reasoning
        for piece in one.tool_calls:
            if piece.id is not None:
                result.calls.append((piece.name or "", ""))
            name, arguments = result.calls[piece.index]
            result.calls[piece.index] = (name, arguments + piece.arguments)
    return result


def _accepted(result: Seen, vector: Vector) -> bool:
    return any(_matches(result, answer, vector.whitespace) for answer in (vector.expect, *vector.accept_also))


def _matches(result: Seen, answer: ExpectedOutput, whitespace: str) -> bool:
    return (
        _text(result.content, whitespace) == _text(answer.content, whitespace)
        and _text(result.reasoning, whitespace) == _text(answer.reasoning_content, whitespace)
        and [name for name, _ in result.calls] == [call.name for call in answer.tool_calls]
        and all(
            _same(arguments, call.arguments)
            for (_, arguments), call in zip(result.calls, answer.tool_calls, strict=True)
        )
    )


def _text(text: str | None, whitespace: str) -> str:
    text = text or ""
    return {"exact": text, "strip": text.strip(), "collapse": " ".join(text.split())}[whitespace]


def _same(arguments: str, expected: Any) -> bool:
    """Compare by value: numbers of one value are equal, a boolean is not a number."""
    if arguments == expected:
        return True
    try:
        return bool(_canonical(json.loads(arguments)) == _canonical(expected))
    except ValueError:
        return False


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return (type(value).__name__ == "bool", value)


def _show(result: Seen) -> str:
    return msgspec.json.encode(result).decode()

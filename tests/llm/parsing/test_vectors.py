"""The project's vectors, whole, by character, by byte pieces and at random cuts, through the Adapter.

The same rules as the runner that ships with the vectors, written again: what is equal, and what a stream of
deltas must look like.
"""

from __future__ import annotations

import codecs
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ovserve.llm.parsing import markup
from tests.conformance_adapter import Adapter

VECTORS = [
    vector
    for path in sorted((Path(__file__).parents[2] / "vectors/parsers").glob("*.json"))
    for vector in json.loads(path.read_text())
]
PARSERS = sorted({vector["parser"] for vector in VECTORS})
RANDOM_CUTS = 6


def of_parser(parser: str) -> list[dict[str, Any]]:
    return [vector for vector in VECTORS if vector["parser"] == parser]


def name_of(vector: dict[str, Any]) -> str:
    return f"{vector['parser']}-{vector['name']}"


def same(a: Any, b: Any) -> bool:
    """Numbers by value, booleans only with booleans."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def arguments_match(got: str, want: Any) -> bool:
    if isinstance(want, str):
        return got == want
    try:
        return same(json.loads(got), want)
    except ValueError:
        return False


def squeeze(text: str | None, mode: str) -> str:
    text = text or ""
    return text if mode == "exact" else text.strip() if mode == "strip" else " ".join(text.split())


def accepted(got: dict[str, Any], vector: dict[str, Any]) -> bool:
    mode = vector.get("whitespace", "exact")
    return any(
        squeeze(got["content"], mode) == squeeze(want["content"], mode)
        and squeeze(got["reasoning_content"], mode) == squeeze(want["reasoning_content"], mode)
        and [c["name"] for c in got["tool_calls"]] == [c["name"] for c in want["tool_calls"]]
        and all(
            arguments_match(a["arguments"], b["arguments"])
            for a, b in zip(got["tool_calls"], want["tool_calls"], strict=True)
        )
        for want in (vector["expect"], *vector.get("accept_also", ()))
    )


def cuts(vector: dict[str, Any]) -> Iterator[list[str]]:
    text = vector["model_output"]
    yield [text]
    yield list(text)
    if "chunks" in vector:
        yield vector["chunks"]
    if "chunks_hex" in vector:
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield [decoder.decode(bytes.fromhex(piece)) for piece in vector["chunks_hex"]]
    rng = random.Random(name_of(vector))
    for _ in range(RANDOM_CUTS):
        places = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(1, 12))))
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def merged(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client does it; checks that ids and names come once, and indices in order."""
    out: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas:
        for field in ("content", "reasoning_content"):
            out[field] += delta.get(field) or ""
        for piece in delta.get("tool_calls", ()):
            calls, function = out["tool_calls"], piece["function"]
            if piece["index"] == len(calls):
                assert piece["id"]
                assert piece["type"] == "function"
                calls.append({"id": piece["id"], "name": function["name"], "arguments": ""})
            else:
                assert piece["index"] == len(calls) - 1
                assert not {"id", "type"} & piece.keys()
                assert "name" not in function
            calls[piece["index"]]["arguments"] += function.get("arguments", "")
    ids = [call["id"] for call in out["tool_calls"]]
    assert len(set(ids)) == len(ids)
    return out


@pytest.mark.parametrize("parser", PARSERS)
def test_whole(parser: str, subtests: pytest.Subtests) -> None:
    for vector in of_parser(parser):
        with subtests.test(name_of(vector)):
            got = Adapter().parse(vector)
            assert accepted(got, vector), got
            ids = [call["id"] for call in got["tool_calls"]]
            if "expect_ids" in vector:
                assert ids == vector["expect_ids"]
            elif parser in ("mistral", "devstral"):
                assert all(re.fullmatch("[0-9A-Za-z]{9}", id) for id in ids)


@pytest.mark.parametrize("parser", PARSERS)
def test_streamed(parser: str, subtests: pytest.Subtests) -> None:
    for vector in of_parser(parser):
        with subtests.test(name_of(vector)):
            for pieces in cuts(vector):
                stream = Adapter().stream(vector)
                deltas = [delta for piece in pieces for delta in stream.feed(piece)]
                got = merged(deltas + stream.finish())
                assert accepted(got, vector) or not vector["stream_equivalent"], (pieces, got)


SPECIAL = re.compile(r"</?[^\s<>\"'=]+>|<\|\"\|>|\[/?[A-Z_]+\]")  # how vocabularies write special tokens


@pytest.mark.parametrize("parser", PARSERS)
def test_all_special_tokens_but_the_markup_may_be_hidden(parser: str, subtests: pytest.Subtests) -> None:
    for vector in of_parser(parser):
        tool = None if vector["kind"] == "reasoning" else parser
        reasoning = vector.get("reasoning_parser") if tool else parser
        shown = markup(tool, reasoning, calls=vector.get("tools_available", True))
        text, wanted = vector["model_output"], json.dumps([vector["expect"], *vector.get("accept_also", ())])
        for token in {*SPECIAL.findall(text)}:
            # What a client gets to see is not markup.
            if not any(token in each for each in shown) and token not in wanted:
                text = text.replace(token, "")
        with subtests.test(name_of(vector)):
            got = Adapter().parse(vector | {"model_output": text})
            assert accepted(got, vector), (text, got)


def test_every_tool_dialect_has_vectors() -> None:
    from ovserve.llm.parsing import default

    assert {vector["parser"] for vector in VECTORS} >= set(default().tool_names)

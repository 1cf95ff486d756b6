"""The project's vectors by `ovserve test-parser`, and what a stream of deltas and its ids must look like."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ovserve.llm.parser_proof import Vector, difference, validate
from ovserve.llm.parsing import markup
from tests.conformance_adapter import Adapter

FILES = sorted((Path(__file__).parents[2] / "vectors/parsers").glob("*.json"))
VECTORS = [vector for path in FILES for vector in json.loads(path.read_text())]
PARSERS = sorted({vector["parser"] for vector in VECTORS})


def of_parser(parser: str) -> list[dict[str, Any]]:
    return [vector for vector in VECTORS if vector["parser"] == parser]


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


@pytest.mark.long
@pytest.mark.parametrize("parser", PARSERS)
def test_they_hold_at_every_cut(parser: str) -> None:
    said: list[str] = []
    assert validate(parser, FILES, said.append) == 0, said


@pytest.mark.parametrize("parser", PARSERS)
def test_the_shape_and_the_ids_of_deltas(parser: str) -> None:
    for vector in of_parser(parser):
        stream = Adapter().stream(vector)
        deltas = [delta for character in vector["model_output"] for delta in stream.feed(character)]
        ids = [call["id"] for call in merged(deltas + stream.finish())["tool_calls"]]
        if "expect_ids" in vector:
            assert ids == vector["expect_ids"], vector["name"]
        elif parser in ("mistral", "devstral"):
            assert all(re.fullmatch("[0-9A-Za-z]{9}", id) for id in ids), vector["name"]


SPECIAL = re.compile(r"</?[^\s<>\"'=]+>|<\|\"\|>|\[/?[A-Z_]+\]")  # how vocabularies write special tokens


@pytest.mark.parametrize("parser", PARSERS)
def test_all_special_tokens_but_the_markup_may_be_hidden(parser: str) -> None:
    for vector in of_parser(parser):
        tool = None if vector["kind"] == "reasoning" else parser
        reasoning = vector.get("reasoning_parser") if tool else parser
        shown = markup(tool, reasoning, calls=vector.get("tools_available", True))
        text, wanted = vector["model_output"], json.dumps([vector["expect"], *vector.get("accept_also", ())])
        for token in {*SPECIAL.findall(text)} - {
            *vector.get("plain_tags", ())
        }:  # slips that no vocabulary has
            # What a client gets to see is not markup.
            if not any(token in each for each in shown) and token not in wanted:
                text = text.replace(token, "")
        if text == vector["model_output"]:
            continue  # test_they_hold_at_every_cut has tried it
        hidden = msgspec.convert(vector | {"model_output": text, "chunks": None, "chunks_hex": None}, Vector)
        assert not difference(parser, hidden)[1], vector["name"]


def test_every_tool_dialect_has_vectors() -> None:
    from ovserve.llm.parsing.registry import default

    assert {vector["parser"] for vector in VECTORS} >= set(default().tool_names)

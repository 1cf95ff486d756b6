"""Counts of `scripts/shape.py` and `scripts/count_calls.py`, each held to a number that may only fall.

A number that has fallen is lowered here in the same commit. Raising one needs a reason in the commit.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import count_calls, shape
from tests.encoders import graph, tiny

MOST = {
    "files": 473,
    "lines": 100_176,
    "folders": 65,
    "top-level packages": 20,
    "modules with one importer": 80,
    f"of these under {shape.SHORT_LINES} lines, in its folder": 0,
    "base classes with one subclass": 6,
    "depth of inheritance": 4,
    "circles among files": 0,
    "names that are a bare participle": 92,
    "numeric constants of one word": 0,
}
# Of a streamed chat with the default model: the first token of a request, and each further one; and of an embeddings
# request. Timers of the server and split messages add some to the 680 of a chat (2026-11-30).
TRIES = 3
MOST_CALLS = {
    "request": {"server": count_calls.Calls(700, 64), "engine": count_calls.Calls(224, 20)},
    "token": {"server": count_calls.Calls(73, 19), "engine": count_calls.Calls(84, 11)},
    "embeddings": {"server": count_calls.Calls(285, 45), "engine": count_calls.Calls(48, 11)},
}


def test_the_static_counts_only_fall() -> None:
    counts = shape.shape()
    assert counts.keys() == MOST.keys()
    over = {name: (count, MOST[name]) for name, count in counts.items() if count > MOST[name]}
    assert not over, f"(count, most): {over}"


def test_the_counts_find_what_they_count() -> None:
    graph = shape.import_graph()
    assert graph.keys() == {shape.module_name(path) for path in shape.files()}
    assert "ovserve.graph.node" in graph["ovserve.graph.calculator"]
    assert shape.bases()["NotFound"] == ["OvserveError"]
    numbers = {
        text: shape.is_number(ast.parse(text, mode="eval").body) for text in ("-1", "4 << 20", "True", "N")
    }
    assert numbers == {"-1": True, "4 << 20": True, "True": False, "N": False}
    assert all(len(group) > 1 and set(group) <= graph.keys() for group in shape.circles())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_calls_of_requests_only_fall(model: Path, tmp_path: Path) -> None:
    tiny("bert", tmp_path)
    (tmp_path / "graph.pbtxt").write_text(graph("./"))
    for attempt in range(TRIES):
        report = count_calls.measure(model.parent, tmp_path)._asdict()
        over = [
            (what, side, counted)
            for what, sides in report.items()
            for side, counted in sides.items()
            if not 0 < counted.calls <= MOST_CALLS[what][side].calls
            or not 0 < counted.files <= MOST_CALLS[what][side].files
        ]
        if not over or attempt == TRIES - 1:
            break
    assert not over, over

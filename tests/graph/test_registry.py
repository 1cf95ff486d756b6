"""Third-party calculators: a file in the graph's directory, and the entry point group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.graph.graph import Graph

CODE = """
from ovserve.graph import Calculator, Context, Input, Output, calculator

@calculator("Mine")
class Mine(Calculator):
    a = Input("IN", object)
    b = Output("OUT", object)

    async def process(self, cc: Context) -> None:
        cc.send(self.b, %r)
"""
GRAPH = """
input_stream: "a" output_stream: "b"
node { calculator: "Mine" input_stream: "IN:a" output_stream: "OUT:b" }
"""


def write(directory: Path, code: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "calculators.py").write_text(code)
    (directory / "graph.pbtxt").write_text(GRAPH)
    return directory / "graph.pbtxt"


async def answer(graph: Graph) -> object:
    async with graph.start() as run:
        await run.send("a", 1)
        packet = await run.read("b")
        assert packet is not None
        return packet.value


async def test_two_graphs_with_a_calculators_py_do_not_share_it(tmp_path: Path) -> None:
    one = Graph.load(write(tmp_path / "one", CODE % "one"), Registry())
    two = Graph.load(write(tmp_path / "two", CODE % "two"), Registry())
    assert (await answer(one), await answer(two)) == ("one", "two")


async def test_an_edited_calculators_py_is_new_at_the_next_load(tmp_path: Path) -> None:
    old = Graph.load(write(tmp_path / "g", CODE % "old"), Registry())
    new = Graph.load(write(tmp_path / "g", CODE % "new"), Registry())
    assert (await answer(old), await answer(new)) == ("old", "new")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1", "@calculator"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_bad_calculators_py_is_a_load_error_naming_the_file(tmp_path: Path, code: str, says: str) -> None:
    path = write(tmp_path / "g", code)
    with pytest.raises(LoadError, match=says) as caught:
        Graph.load(path, Registry())
    assert str(tmp_path / "g" / "calculators.py") in str(caught.value)


def test_entry_points_are_found(tmp_path: Path) -> None:
    """A distribution as pip would lay it out, seen by a fresh interpreter."""
    (tmp_path / "their_calculators.py").write_text(CODE % "theirs")
    info = tmp_path / "their_calculators-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-calculators\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ovserve.calculators]\nmine = their_calculators:Mine\n")
    program = (
        "from ovserve.graph import Registry\n"
        "registry = Registry()\nregistry.add_entry_points()\nprint(registry.names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['Mine']"


@pytest.mark.parametrize(
    "name",
    ["AddOneSingleStreamTestCalculator", "HolisticTrackingCpu", "IrisLandmarkCpu", "FlowLimiterCalculator"],
)
def test_a_calculator_in_cpp_is_said_to_be_absent(name: str) -> None:
    said = Registry(MODULES).unknown(name)
    assert "C++ calculators are not here: write it in Python" in said
    assert "known: " in said
    assert "OpenVINOInferenceCalculator" in said


@pytest.mark.parametrize("name", ["LLMExecutrCalculator", "PassthroughCalculator", "EmbeddingsCalculator"])
def test_a_mistyped_name_is_corrected_alone(name: str) -> None:
    said = Registry(MODULES).unknown(name)
    assert "(did you mean " in said
    assert "C++" not in said

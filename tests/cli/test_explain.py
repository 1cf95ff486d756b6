"""`ovserve explain`: a picture of a graph for the terminal, and as SVG."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ovserve.cli import main
from tests.conftest import ROOT


def shipped(name: str, directory: Path) -> str:
    """A copy of a graph of two models which has the default model twice, so that no other need be there."""
    text = (ROOT / "graphs" / name / "graph.pbtxt").read_text()
    text = text.replace("../../models/qwen2.5-coder-0.5b", "../../models/smollm2")
    copy = directory / name
    shutil.copytree(ROOT / "graphs" / name, copy)
    (copy / "graph.pbtxt").write_text(text.replace("../../models", str(ROOT / "models")))
    return str(copy)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["explain", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out + err


def test_a_graph_whose_model_is_absent_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = shipped("guardrail", tmp_path)
    graph = Path(name) / "graph.pbtxt"
    graph.write_text(re.sub(r'models_path: "[^"]*"', 'models_path: "/absent"', graph.read_text()))
    code, text = run(capsys, name)
    assert code == 0
    assert "models_path: /absent does not exist" in text
    assert "■ PromptGuard  (PromptGuardCalculator)" in text
    graph.write_text(graph.read_text().replace("words:", "wrds:"))
    code, text = run(capsys, name)
    assert code == 1
    assert "did you mean words?" in text


def test_every_node_port_type_and_option_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = run(capsys, shipped("cascade", tmp_path))
    assert code == 0
    assert "takes HTTP payloads, 11 nodes, 2 engines" in text
    for part in (
        "■ Cascade  (CascadeCalculator)",
        "min_mean_logprob = -0.75",
        "max_tokens = None",
        "LLM_NODE_RESOURCES  llm_large: LlmResources  (side packet)",
        "LOOPBACK            loopback: bool  (back edge)",
        "max_num_seqs = 8",
        "OUT   parsed: any",
    ):
        assert part in text, part
    lines = text.splitlines()
    assert sum(line.startswith("┌") for line in lines) == sum(line.startswith("└") for line in lines)


def test_a_line_leads_from_an_output_to_its_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = run(capsys, str(ROOT / "graphs/pii_mask/graph.pbtxt"))
    lines = text.splitlines()
    begun = next(i for i, line in enumerate(lines) if "parsed: Parsed" in line and "┌" in line)
    lane = lines[begun].index("┌")
    read = next(i for i in range(begun + 1, len(lines)) if lines[i][lane] == "└")
    assert "▶ PARSED  parsed: Parsed" in lines[read]
    assert {line[lane] for line in lines[begun + 1 : read]} == {"│"}


def test_ascii_for_terminals_without_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, text = run(capsys, shipped("router", tmp_path), "--ascii")
    assert text.isascii()


def test_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "graph.svg"
    assert run(capsys, shipped("router", tmp_path), "--svg", str(file)) == (0, f"{file} is written\n")
    svg = "{http://www.w3.org/2000/svg}"
    tree = ElementTree.parse(file).getroot()
    boxes = tree.findall(f"{svg}rect")
    assert len(boxes) == 11 + 2, "the nodes, and the graph's two ends"
    texts = [element.text for element in tree.findall(f"{svg}text")]
    assert "Router" in texts
    assert "in  IN: DecodedRequest" in texts
    assert any("max_characters = 400" in str(text) for text in texts)
    edges = tree.findall(f"{svg}path")
    assert len([e for e in edges if e.get("class") == "back"]) == 2
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(places) == len(boxes), "no box covers another"
    lines = [element.text for element in tree.findall(f"{svg}text") if element.get("class") == "stream"]
    assert {"decoded_small", "decoded_large", "parsed"} <= set(lines)
    assert len(lines) == len(set(lines)), "each stream is named once"
    tops = sorted(float(box.get("y", 0)) for box in boxes)
    assert tops[0] < tops[-1]
    assert len(set(tops)) == 9, "a row for each layer, and for the ends"


def test_a_graph_that_would_not_load_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = run(capsys, str(tmp_path))
    assert code == 1
    assert "has no graph.pbtxt" in text
    code, text = run(capsys, str(ROOT / "graphs"))
    assert code == 1
    assert "name one of them" in text


def test_a_terminal_gets_colours_and_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, text = run(capsys, str(ROOT / "graphs/smollm2"))
    assert "\x1b[1m■ LLMExecutor" in text or "\x1b[1m ■ LLMExecutor" in text
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in text.splitlines()[2:]]
    assert max(map(len, lines)) == 50
    assert any(line.endswith("…") for line in lines)

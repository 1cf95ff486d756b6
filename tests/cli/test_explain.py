"""`ovserve explain`: a picture of a graph for the terminal."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

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


def test_a_terminal_without_lines_gets_ascii(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph = shipped("router", tmp_path)
    out = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr("sys.stdout", out)
    assert run(capsys, graph)[0] == 0
    picture = out.buffer.getvalue()  # type: ignore[attr-defined]
    assert picture.isascii()
    assert b"# Router" in picture


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

"""`ovserve new`: what it writes works as it is, and its own tests pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.cli import main
from ovserve.graph import Registry
from ovserve.serving.loader import check_graph
from tests.conftest import ROOT

pytestmark = pytest.mark.long


def new(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["new", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out + err


def own_tests(directory: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(directory)]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=230, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}


def test_a_new_graph_loads_and_its_tests_pass(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path
) -> None:
    directory = tmp_path / "shy-words"
    code, text = new(capsys, "graph", str(directory), "--model", str(model))
    assert (code, f"ovserve explain {directory}" in text) == (0, True), text
    graph, engines = check_graph(directory, Registry(MODULES))
    assert list(engines) == ["llm"]
    assert [p.node.name for p in graph.plan.nodes][-2:] == ["ShyWords", "ResponseWriter"]
    code, text = new(capsys, "calculator", "MaskNamesCalculator", "--directory", str(directory))
    assert code == 0
    assert 'calculator: "MaskNamesCalculator"' in text
    assert "MaskNamesCalculator" in Registry(MODULES).for_directory(directory).names
    assert "4 passed" in own_tests(directory)


def test_a_pulled_model_is_named_without_its_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models/small").mkdir(parents=True)
    (tmp_path / "models/small/pull.json").write_text("{}")
    (tmp_path / "models/small" / model.name).symlink_to(model)
    monkeypatch.chdir(tmp_path)
    assert new(capsys, "graph", "guard", "--model", "small")[0] == 0
    assert 'models_path: "../models/small"' in (tmp_path / "guard/graph.pbtxt").read_text()


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, text = new(capsys, "graph", str(tmp_path), "--model", str(model))
    assert (code, "is not empty; nothing was written" in text) == (1, True)
    assert new(capsys, "calculator", "Shy", "--directory", str(tmp_path))[0] == 0
    kept = (tmp_path / "calculators.py").read_text()
    for _ in range(2):
        code, text = new(capsys, "calculator", "Mask", "--directory", str(tmp_path))
    assert (code, "mask.py exists; nothing was written" in text) == (1, True)
    assert (tmp_path / "calculators.py").read_text().startswith(kept.rstrip())
    code, text = new(capsys, "calculator", "shy", "--directory", str(tmp_path))
    assert (code, "has a ShyCalculator already; nothing was written" in text) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("graph", "x", "--model", "no/model.gguf"),
            "no/model.gguf does not exist; `ovserve pull` fetches one",
        ),
        (("calculator", "1st"), "does not make the name of a class"),
        (("calculator", "Calculator"), "does not make the name of a class"),
        (("calculator", "máscara"), "does not make the name of a class"),
    ],
)
def test_what_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = new(capsys, *arguments)
    assert (code, says in text) == (1, True), text
    assert not list(tmp_path.iterdir())


def test_a_graph_that_would_not_load_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "model.txt"
    wrong.write_text("no model")
    code, text = new(capsys, "graph", str(tmp_path / "made"), "--model", str(wrong))
    assert code == 1, text
    assert not (tmp_path / "made").exists()

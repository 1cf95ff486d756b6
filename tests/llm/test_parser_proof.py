"""`ovserve test-parser`: a dialect of an installed package is found and proven; one that errs is told where."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ovserve.errors import LoadError
from ovserve.llm.parser_proof import validate

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text().partition("### A parser of your own")[2]
IMPORTS = """
from ovserve.llm.parsing.dialect import ToolDialect
from ovserve.llm.parsing.cursor import Cursor, Steps
from ovserve.llm.parsing.json_call import MARKED, call_object
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.literal import Tools

"""


def block(language: str) -> str:
    """A block of the guide, so that what it shows is what is tested."""
    found = re.search(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1]


def write(path: Path, vectors: Any) -> Path:
    path.write_text(vectors if isinstance(vectors, str) else json.dumps(vectors))
    return path


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory on the path with an installed package, as pip leaves one."""
    site = tmp_path / "site"
    (site / "my_package").mkdir(parents=True)
    (site / "my_package/__init__.py").touch()
    (site / "my_package/shout.py").write_text(IMPORTS + block("python"))
    info = site / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    group, entry = block("toml").splitlines()
    name = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", group)
    (info / "entry_points.txt").write_text(f"{name}\n{entry.replace(chr(34), '')}\n")
    return site


def command(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    return subprocess.run(
        [sys.executable, "-m", "ovserve", "test-parser", *map(str, arguments)],
        env=environment, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip


def test_the_guide_s_dialect_is_proven_by_its_vectors(installed: Path, tmp_path: Path) -> None:
    vectors = write(tmp_path / "vectors.json", block("json"))
    done = command(installed, "shout", vectors)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"shout: 1 of 1 vectors hold, in \d+ cuts\n", done.stdout)
    wrong = json.loads(block("json"))
    wrong[0]["expect"]["tool_calls"][0]["arguments"] = {"x": True}
    done = command(installed, "shout", write(tmp_path / "wrong.json", wrong))
    assert done.returncode == 1
    assert done.stdout.startswith("wrong.json: one call: whole: got ")
    assert "shout: 0 of 1 vectors hold" in done.stdout


def test_a_missing_file_and_an_unknown_name_are_errors(installed: Path, tmp_path: Path) -> None:
    assert "cannot be read" in command(installed, "shout", tmp_path / "none.json").stderr
    unknown = command(installed, "whisper", tmp_path / "none.json")
    assert unknown.returncode == 1
    assert re.search(r"'whisper' is not known.* shout", unknown.stderr)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "not a file of vectors"),
        ("[", "not a file of vectors"),
        ('[{"name": "x"}]', "model_output"),
        ('[{"name": "x", "model_output": "", "expect": {}, "parser": "llama3"}]', "no vector for parser"),
        ("[]", "no vector for parser"),
    ],
)
def test_files_that_prove_nothing(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        validate("hermes3", [write(tmp_path / "v.json", text)], print)


def test_a_dialect_that_depends_on_the_cut_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ovserve.llm.parsing import scanner

    real = scanner.TextParser.feed
    monkeypatch.setattr(scanner.TextParser, "feed", lambda self, text: real(self, text.strip()))
    vectors = [{"name": "two words", "model_output": "two words", "expect": {"content": "two words"}}]
    said: list[str] = []
    assert validate("hermes3", [write(tmp_path / "v.json", vectors)], said.append) == 1
    assert "v.json: two words: every character: got " in said[0]

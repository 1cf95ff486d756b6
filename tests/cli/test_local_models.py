"""`ovserve show`, `rm`, `ps` and `completion`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.cli import main
from ovserve.cli.commands import SUBCOMMANDS
from ovserve.cli.completion import _words
from tests.conftest import ROOT, Server
from tests.pull import tiny_gguf


def ovserve(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(flags))
    return int(ended.value.code or 0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a pulled model and one that somebody has put there."""
    made = tmp_path / "models"
    monkeypatch.setenv("OVSERVE_MODEL_REPOSITORY_PATH", str(made))
    tiny = tiny_gguf.write(tmp_path / "tiny.gguf")
    pulled = ["pull", str(tiny), "--model_repository_path", str(made), "--model_name", "own/tiny"]
    pulled += ["--engine", "genai"]  # uses the file in place
    assert ovserve(*pulled) == 0
    (made / "mine").mkdir()
    (made / "mine/graph.pbtxt").write_text((made / "own/tiny/graph.pbtxt").read_text())
    return made


def test_a_model_is_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert ovserve("show", "own/tiny") == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert told["name"] == "own/tiny"
    assert told["architecture"] == "llama"
    assert told["model"].endswith("tiny.gguf")
    assert ovserve("show", str(place.parent / "tiny.gguf")) == 0
    assert "made in memory" in capsys.readouterr().out
    assert ovserve("show", "qwen2.5-coder-1.5b") == 0
    assert "Apache-2.0; takes 2.3 GB of disk and 1.5 GB of memory; not pulled" in capsys.readouterr().out
    assert ovserve("show", "nothing") == 1
    assert "it has mine, own/tiny" in capsys.readouterr().err


def test_a_pulled_model_is_removed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ovserve("rm", "own/tiny") == 1
    assert "--yes removes without asking" in capsys.readouterr().err
    assert ovserve("rm", "own/tiny", "--yes") == 0
    assert sorted(path.name for path in place.iterdir()) == ["mine"], "the owner's folder is gone too"
    assert (place.parent / "tiny.gguf").exists(), "a model that was used in place stays"


@pytest.mark.parametrize("name", ["../tiny.gguf", "/etc", "", "own", "none"])
def test_only_models_are_removed(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ovserve("rm", name, "--yes", "--force") == 1
    assert (place / "own/tiny/graph.pbtxt").exists()


def test_what_was_not_pulled_is_removed_by_force_only(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ovserve("rm", "mine", "--yes") == 1
    assert "--force removes it" in capsys.readouterr().err
    assert ovserve("rm", "mine", "--yes", "--force") == 0
    assert not (place / "mine").exists()


def test_ps_of_a_running_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert ovserve("ps", "--url", server.url) == 0
    header, row = capsys.readouterr().out.splitlines()
    told = dict(zip(header.split(), row.replace(" MB", "MB").split(), strict=True))
    assert (told["NAME"], told["STATE"], told["CONTEXT"]) == ("smollm2", "AVAILABLE", "8192")
    assert told["MEMORY"].endswith("MB")
    assert float(told["TOKENS/S"]) >= 0
    assert ovserve("ps", "--url", "http://127.0.0.1:9") == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_words_that_may_stand_there(place: Path) -> None:
    assert set(_words([""])) >= {name.replace("_", "-") for name in SUBCOMMANDS}
    assert _words(["ser"]) == ["serve"]
    assert _words(["serve", "--target"]) == ["--target_device"]
    assert _words(["serve", "--log_format", "j"]) == ["json"]
    assert _words(["rm", ""]) == ["mine", "own/tiny"]
    assert "smollm2" in _words(["run", "s"])
    assert _words(["completion", "b"]) == ["bash"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ovserve", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "ovserve completion words" in done.stdout
    try:
        checked = subprocess.run(
            [shell, "-n"], input=done.stdout, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip(f"{shell} is not installed")
    assert checked.returncode == 0, checked.stderr


def test_bash_completes(tmp_path: Path) -> None:
    script = f"""
        ovserve() {{ {sys.executable} -m ovserve "$@"; }}
        eval "$(ovserve completion bash)"
        COMP_WORDS=(ovserve pu); COMP_CWORD=1; _ovserve; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.split() == ["pull"], done.stderr

"""The benchmarks and scripts can be started: each module is imported, and those that are commands explain themselves.

What they measure is run by hand, so a name that moved away would be noticed months later.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Programs that a benchmark or a script starts, with arguments of its own; several in another environment.
PARTS = {
    *(
        "bare",
        "embedding_least",
        "embedding_models",
        "embedding_sides",
        "inference_least",
        "inference_peer_apps",
    ),
    *("peer_setup", "peer_weights", "text_least"),
}
ELSEWHERE = ("torch", "transformers", "safetensors", "sentence_transformers", "mkdocs", "kserve")
TRY = """
import contextlib, importlib, io, runpy, sys
parts, elsewhere = {parts!r}, {elsewhere!r}
for name in sys.argv[1:]:
    said = io.StringIO()
    try:
        if name.rpartition(".")[2] in parts or not name.startswith("benchmarks."):
            importlib.import_module(name)
            continue
        sys.argv = [name, "--help"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        fault = "it does not know --help"
    except ModuleNotFoundError as error:
        fault = "" if (error.name or "").partition(".")[0] in elsewhere else repr(error)
    except SystemExit as end:
        fault = "" if end.code in (0, None) and "usage:" in said.getvalue() else f"exit {{end.code}}: {{said.getvalue()}}"
    except BaseException as error:
        fault = repr(error)
    if fault:
        print(f"{{name}}: {{fault}}")
"""


def modules(folder: str) -> list[str]:
    files = [p for p in (ROOT / folder).rglob("*.py") if not p.name.startswith("test_")]
    return sorted(module_name(file) for file in files if file.name != "__init__.py")


def module_name(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__main__")


def is_command(name: str) -> bool:
    file = ROOT / name.replace(".", "/")
    file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
    return '__name__ == "__main__"' in file.read_text()


@pytest.mark.parametrize("folder", ["benchmarks", "scripts"])
def test_every_one_can_be_started(folder: str) -> None:
    code = TRY.format(parts=PARTS, elsewhere=ELSEWHERE)
    names = [name for name in modules(folder) if is_command(name)]
    assert len(names) > 20
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

"""The wheel holds the console: a page that is missing its files would be found by users only."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ovserve.console.console import STATIC, TYPES
from tests.conftest import ROOT

LARGEST = 700_000  # bytes of all vendored modules; the first page loads a quarter of them


def test_vendored_modules_stay_small() -> None:
    assert sum(p.stat().st_size for p in (STATIC / "vendor").glob("*.js")) < LARGEST


def test_every_file_has_a_type() -> None:
    assert {p.suffix for p in STATIC.rglob("*") if p.is_file()} <= set(TYPES)


def test_the_wheel_has_every_file_of_the_console(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed; pip builds the wheel with it")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=230)
    [wheel] = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    missing = [p for p in STATIC.rglob("*") if p.is_file() and p.relative_to(ROOT).as_posix() not in held]
    assert not missing

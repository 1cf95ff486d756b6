"""`index` makes wheels that the real pip finds; `run` is the real command."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ovserve.pull.packaged import PackagedModel
from tests.conftest import ROOT
from tests.pull.hub_server import HubServer

REPO = "some/llama-ov"  # of the hub


class Index:
    """A directory of wheels, and the environment in which pip looks nowhere else."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        directory.mkdir()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
        monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")

    def add(self, name: str, member: str, data: bytes, version: str = "1.0") -> str:
        """A wheel with this member, and code that must not run. Returns its requirement."""
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(self.directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, data)
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: none-such\n",
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        return f"{name}=={version}"

    def model(self, *parts: bytes, file: str = "m.gguf", **changes: object) -> PackagedModel:
        """A packaged model whose pieces are there as wheels."""
        pieces = [
            (self.add(f"part{i}", f"part{i}/{i}.bin", part), f"part{i}/{i}.bin")
            for i, part in enumerate(parts)
        ]
        whole = b"".join(parts)
        values = {
            "size": len(whole),
            "sha256": hashlib.sha256(whole).hexdigest(),
            "licence": "MIT",
            **changes,
        }
        return PackagedModel(file, tuple(pieces), **values)  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path / "index", monkeypatch)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`ovserve ARGUMENTS` in the empty directory tmp_path/cwd."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()

    def run_(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(
            [sys.executable, "-m", "ovserve", *map(str, arguments)],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=230,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run_


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with one model as optimum-cli exports it: its layers have names."""
    from tests import lora

    server = HubServer()
    lora.model(tmp_path / "exported")
    server.files[REPO] = {file.name: file.read_bytes() for file in (tmp_path / "exported").iterdir()}
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.stop()

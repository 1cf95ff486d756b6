"""The package without its repository: a wheel, and what a message says of a missing extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from ovserve import installation
from tests.conftest import MODEL, ROOT, free_environment

pytestmark = pytest.mark.long

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make wheel` builds it."""
    made = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q", "--no-deps"]
    done = subprocess.run([*command, "-w", str(made), str(ROOT)], capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr
    (file,) = made.glob("ovserve-*.whl")
    return file


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "ovserve"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert names == {name for name in tracked.stdout.split("\n") if name}


def environment(directory: Path, wheel: Path, *, real: bool) -> Path:
    """A fresh environment with the wheel. Unless `real`, its dependencies are those of this environment."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True, timeout=230)
    python = directory / "bin/python"
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", str(wheel)]
    subprocess.run(command if real else [*command, "--no-deps"], check=True, timeout=1000)
    if not real:
        (site,) = (directory / "lib").glob("python*/site-packages")
        # A .pth file in it is not followed, so the checkout that may be installed there stays out.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def answer(python: Path, directory: Path) -> str:
    """What the default model answers, served from an empty directory with no more than the wheel."""
    (directory / "models").mkdir(parents=True)
    (directory / "models/smollm2").mkdir()
    (directory / "models/smollm2" / MODEL.name).symlink_to(MODEL)
    clean = free_environment()
    run = [str(python), "-m", "ovserve"]
    where = subprocess.run([str(python), "-c", "import ovserve; print(ovserve.__file__)"], cwd=directory, env=clean, capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert str(ROOT) not in where
    serve = [*run, "serve", "--rest_port", "0"]  # nothing is named: the default model
    with subprocess.Popen(serve, cwd=directory, env=clean, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = (re.search(r"ready at (\S+)/v3", line) for line in server.stdout)
            url = next(found[1] for found in ready if found)
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": "Say hello"}],
                "max_tokens": 8,
            }
            reply = httpx.post(f"{url}/v3/chat/completions", json=body, timeout=230)
            text: str = reply.json()["choices"][0]["message"]["content"]
            return text
        finally:
            server.terminate()


def test_the_wheel_answers_without_the_repository(wheel: Path, tmp_path: Path, model: Path) -> None:
    python = environment(tmp_path / "venv", wheel, real=False)
    assert answer(python, tmp_path / "empty")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_and_its_dependencies_answer(wheel: Path, tmp_path: Path, model: Path) -> None:
    """As a user installs it: every dependency from the index."""
    python = environment(tmp_path / "venv", wheel, real=True)
    assert answer(python, tmp_path / "empty")
    serve = [str(python), "-m", "ovserve", "serve", "--otlp_traces_endpoint", "http://127.0.0.1:1/v1/traces"]
    refused = subprocess.run(serve, cwd=tmp_path / "empty", env=free_environment(), capture_output=True, text=True, timeout=230)  # fmt: skip
    command = refused.stderr.partition("install it: ")[2].strip()
    assert re.fullmatch(rf"{python} -m pip install( 'opentelemetry[-a-z]+<2,>=[0-9.]+'){{2}}", command), refused.stderr  # fmt: skip
    subprocess.run(command, shell=True, check=True, timeout=600)
    subprocess.run([str(python), "-c", "from opentelemetry.sdk import trace"], check=True)


# ---- what a message says


class Installed(metadata.Distribution):
    """A distribution with these requirements, installed from this URL."""

    def __init__(self, origin: str = "", requires: tuple[str, ...] = ()) -> None:
        self._origin, self._requires = origin, requires

    def read_text(self, filename: str) -> str | None:
        if filename == "direct_url.json":
            return self._origin or None
        return (
            "".join(f"Requires-Dist: {line}\n" for line in self._requires) if filename == "METADATA" else None
        )

    def locate_file(self, path: str | os.PathLike[str]) -> Path:  # type: ignore[override]
        return Path(path)


HUB = ("aiohttp>=3", "huggingface_hub<3,>=2; extra == 'hub'", "gguf>=0.19; extra == 'convert'")


@pytest.mark.parametrize(
    ("origin", "prefix", "pip", "says"),
    [
        ('{"url": "file:///my%20code/ovserve", "dir_info": {"editable": true}}', "/venv", True, "PYTHON -m pip install -e '/my code/ovserve[hub]'"),
        ('{"url": "file:///dist/ovserve.whl", "archive_info": {}}', "/venv", True, "PYTHON -m pip install 'huggingface_hub<3,>=2'"),
        ("", "/venv", True, "PYTHON -m pip install 'huggingface_hub<3,>=2'"),
        ("not json", "/venv", False, "uv pip install --python PYTHON 'huggingface_hub<3,>=2'"),
        ("", "/home/me/.local/pipx/venvs/ovserve", True, "pipx inject ovserve 'huggingface_hub<3,>=2'"),
        ("", "/home/me/.local/share/uv/tools/ovserve", False, "uv tool install ovserve --with 'huggingface_hub<3,>=2'"),
    ],
)  # fmt: skip
def test_the_command_fits_the_installation(
    monkeypatch: pytest.MonkeyPatch, origin: str, prefix: str, pip: bool, says: str
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin, HUB))
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if pip else None)
    assert installation.extra("hub") == "install it: " + says.replace("PYTHON", sys.executable)


def test_an_extra_that_this_version_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed("", HUB))
    assert installation.extra("audio") == "this ovserve has no extra 'audio'; install a newer one"


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for path in (ROOT / "ovserve").rglob("*.py"):
        named |= set(re.findall(r"\bextra\(['\"](\w+)['\"]\)", path.read_text()))
    assert named
    assert named <= EXTRAS.keys()


def test_all_is_every_other_extra() -> None:
    (line,) = EXTRAS["all"]
    assert set(re.findall(r"\w+", line.partition("[")[2])) == EXTRAS.keys() - {
        "all",
        "compress",
        "espeak",
        "ray",
    }, "espeak's licence is GPL, and compress and ray have more than 200 MB"

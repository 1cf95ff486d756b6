"""The steps of examples/deploy/Containerfile, done without a container: the same commands, in a directory that
stands for its root. Where the test may, the server then runs as OpenShift runs it: under a user id that nobody
has, with a root file system that is read-only. What is left out is the base image.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ovserve import __version__
from scripts.image_constraints import extras
from tests.conftest import ROOT

TEXT = (ROOT / "examples/deploy/Containerfile").read_text()
PATHS = ("/opt/ovserve", "/graphs", "/var/lib/ovserve")  # of the image
ARBITRARY = 1_000_660_000  # a user id as OpenShift gives, with group 0
SYSTEM_PYTHON = Path("/usr/bin/python3")  # readable for every user, unlike one in somebody's home


def steps() -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, rest in found]


# Every mount is read-only but /tmp and the volume "$1"; then "$2" with no right of root's left.
CONFINED = f"""
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,ro,bind /
mount -t tmpfs -o mode=1777 tmpfs /tmp
shift
exec setpriv --reuid={ARBITRARY} --regid=0 --clear-groups --no-new-privs --bounding-set=-all -- "$@"
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """Not tmp_path, which other users may not enter, and not in /tmp, which the server has for itself."""
    with tempfile.TemporaryDirectory(prefix="ovserve-image-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def confined(volume: Path) -> list[str]:
    """Return what a command begins with, empty where this user may not mount."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        return []
    return ["unshare", "-m", "sh", "-ec", CONFINED, "sh", str(volume)]


def moved(text: str, root: Path) -> str:
    """With the paths of the image below `root`."""
    return re.sub(rf"(?<![\w.])({'|'.join(PATHS)})(?=[/\s:]|$)", rf"{root}\1", text)


def test_the_constraints_are_all_that_the_image_needs() -> None:
    """And within the ranges of pyproject.toml, where the extras are those of the container file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "examples/deploy/constraints.txt").read_text().splitlines()[1:]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert list(pins) == sorted(pins)
    wanted = [*project["dependencies"]]
    for extra in extras().split(","):
        wanted += project["optional-dependencies"][extra]
    for one in map(Requirement, wanted):
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), one
    assert "-c constraints.txt" in TEXT
    assert f'image.version="{__version__}"' in TEXT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_steps_make_a_server_that_an_arbitrary_user_runs(root: Path, model: Path) -> None:
    source, bin_ = root / "src", root / "bin"
    source.mkdir()
    bin_.mkdir()
    python = SYSTEM_PYTHON if SYSTEM_PYTHON.exists() else Path(sys.executable)
    (bin_ / "python").symlink_to(python)
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(root)}
    (user,) = [int(rest.partition(":")[0]) for name, rest in steps() if name == "USER"]
    assert user != 0
    command: list[str] = []
    for name, rest in steps():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for one in sources:
                copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
                copy(ROOT / one, source / target)
        elif name == "RUN":
            if os.geteuid():
                rest = re.sub(r" && chown \S+ \S+", "", rest)
            done = subprocess.run(
                ["sh", "-ec", moved(rest, root)], cwd=source, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        elif name == "ENV":
            pairs = dict(word.partition("=")[::2] for word in shlex.split(moved(rest, root)))
            environment |= pairs | {"PATH": pairs["PATH"].replace("$PATH", environment["PATH"])}
        elif name in ("ENTRYPOINT", "CMD"):
            command += re.findall(r'"([^"]*)"', rest)
    (root / "graphs/m").mkdir()
    shutil.copy(model, root / "graphs/m")
    graph = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    graph = re.sub(r'models_path: "[^"]*"', f'models_path: "{model.name}"', graph)
    (root / "graphs/m/graph.pbtxt").write_text(graph)
    before = confined(root / "var/lib/ovserve")
    environment |= {"OVSERVE_REST_PORT": "0", "OVSERVE_REST_BIND_ADDRESS": "127.0.0.1"}
    shutil.rmtree(source)
    server = subprocess.Popen(
        [*before, str(root / "opt/ovserve/bin" / command[0]), *command[1:]],
        cwd="/",
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = next(found[1] for line in server.stdout if (found := re.search(r"ready at (\S+)/v3", line)))
        question = "What is the capital of France?"
        body = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": question}]}
        answer = httpx.post(f"{url}/v3/chat/completions", json=body, timeout=230).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
        body = {"model": "m", "input": question, "max_output_tokens": 5}
        assert httpx.post(f"{url}/v3/responses", json=body, timeout=230).status_code == 200
        assert (root / "var/lib/ovserve/responses.db").stat().st_size
        if before:
            status = Path(f"/proc/{server.pid}/status").read_text()
            assert re.search(r"^Uid:((\t\d+){4})$", status, re.MULTILINE)[1].split() == [str(ARBITRARY)] * 4  # type: ignore[index]
            assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
            mounts = Path(f"/proc/{server.pid}/mounts").read_text()
            assert re.search(r"^\S+ / \S+ ro\b", mounts, re.MULTILINE)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()

"""The steps of examples/deploy/Containerfile, done without a container: the same commands, in a directory that
stands for its root, as its user. What is left out are the base image and what makes it a container.
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
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, script_graph

TEXT = (ROOT / "examples/deploy/Containerfile").read_text()
PATHS = ("/opt/ovserve", "/graphs", "/var/lib/ovserve")  # of the image
ARBITRARY = 1_000_660_000  # a user id as OpenShift gives, with group 0
SYSTEM_PYTHON = Path("/usr/bin/python3")  # readable for every user, unlike one in somebody's home


def steps() -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, rest in found]


@pytest.fixture
def root() -> Iterator[Path]:
    """Not tmp_path, which other users may not enter."""
    with tempfile.TemporaryDirectory(prefix="ovserve-image-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def moved(text: str, root: Path) -> str:
    """With the paths of the image below `root`."""
    return re.sub(rf"(?<![\w.])({'|'.join(PATHS)})(?=[/\s:]|$)", rf"{root}\1", text)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_steps_make_a_server_that_runs_as_its_user(root: Path) -> None:
    source, bin_ = root / "src", root / "bin"
    source.mkdir()
    bin_.mkdir()
    python = SYSTEM_PYTHON if SYSTEM_PYTHON.exists() else Path(sys.executable)
    (bin_ / "python").symlink_to(python)
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(root)}
    (user,) = [int(rest.partition(":")[0]) for name, rest in steps() if name == "USER"]
    assert user != 0
    root_may = {} if os.geteuid() else {"user": ARBITRARY, "group": 0, "extra_groups": ()}
    command: list[str] = []
    for name, rest in steps():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            for one in sources:
                copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
                copy(ROOT / one, source / one)
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
    script_graph(root / "graphs/m", '{"replies": [{"text": "from the image"}]}')
    environment |= {"OVSERVE_REST_PORT": "0", "OVSERVE_REST_BIND_ADDRESS": "127.0.0.1"}
    shutil.rmtree(source)
    server = subprocess.Popen(
        [str(root / "opt/ovserve/bin" / command[0]), *command[1:]],
        cwd="/",
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **root_may,  # type: ignore[call-overload]
    )
    try:
        assert server.stdout is not None
        url = next(found[1] for line in server.stdout if (found := re.search(r"ready at (\S+)/v3", line)))
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answer = httpx.post(f"{url}/v3/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "from the image"
        assert (root / "var/lib/ovserve/responses.db").exists()
        if not os.geteuid():
            assert Path(f"/proc/{server.pid}").stat().st_uid == ARBITRARY
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()

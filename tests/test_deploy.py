"""examples/deploy: what can be checked without a cluster. Options and variables exist, probes are answered, and
the unit is one that systemd takes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.cli.commands import build_parser
from ovserve.server.environment import from_environment, unknown_variables
from ovserve.server.settings import Settings, problem
from tests.conftest import ROOT

DEPLOY = ROOT / "examples/deploy"
UNIT = (DEPLOY / "ovserve.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()


def settings(argv: list[str], environ: dict[str, str]) -> Settings:
    """As the command makes them. Fails on what is unknown."""
    given = vars(build_parser().parse_args(argv))
    assert given.pop("command") == "serve"
    assert not given.pop("notices")
    assert not unknown_variables(environ)
    made = Settings(
        **from_environment(environ) | {k: v for k, v in given.items() if k in Settings.__annotations__}
    )
    assert problem(made) is None
    return made


def test_the_containers_options_exist() -> None:
    environ = dict(re.findall(r"\b(OVSERVE_\w+)=(\S+)", CONTAINER.partition("USER")[2]))
    made = settings(["serve"], environ)
    assert (made.graphs_dir, made.rest_bind_address) == ("/graphs", "0.0.0.0")
    assert f"EXPOSE {made.rest_port}" in CONTAINER
    assert re.search(r'^ENTRYPOINT \["ovserve"\]\nCMD \["serve"\]$', CONTAINER, re.MULTILINE)
    assert re.search(r"^USER \d+:\d+$", CONTAINER, re.MULTILINE), "KServe must see that it is not root"
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE):
        assert all((ROOT / one).exists() for one in copied.split())


def test_the_units_options_exist_and_it_waits_longer_than_the_server() -> None:
    environ = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT, re.MULTILINE))
    made = settings(["serve"], environ)
    (wait,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(wait) > made.shutdown_timeout


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    unit = tmp_path / "ovserve.service"
    unit.write_text(
        UNIT.replace("/opt/ovserve/bin/ovserve", sys.executable).replace("User=ovserve", "User=root")
    )
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    about = [line for line in done.stderr.splitlines() if "ovserve.service" in line]
    assert not about, "\n".join(about)

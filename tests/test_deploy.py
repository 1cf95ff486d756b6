"""examples/deploy: what can be checked without a cluster. Options and variables exist, probes are answered, and
the unit is one that systemd takes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ovserve.cli import build_parser
from ovserve.graph import Registry
from ovserve.http.app import build_app
from ovserve.http.middleware import OPEN
from ovserve.http.routes.describe import routes_of
from ovserve.http.transport.limits import RestLimits
from ovserve.server.environment import from_environment, unknown_variables
from ovserve.server.settings import Settings
from ovserve.server.settings_check import problem
from ovserve.serving.manager import Manager
from tests.conftest import ROOT

DEPLOY = ROOT / "examples/deploy"
UNIT = (DEPLOY / "ovserve.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()


def kserve(kind: str) -> Any:
    (found,) = [d for d in yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text()) if d["kind"] == kind]
    return found["spec"]


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


def test_kserves_options_exist_and_fit_its_times() -> None:
    (container,) = kserve("ServingRuntime")["containers"]
    argv = [one.replace("{{.Name}}", "smollm2") for one in container["args"]]
    made = settings(argv, {})
    assert container["name"] == "kserve-container", "KServe looks for this name"
    assert made.model_path == "/mnt/models", "where KServe puts the model"
    assert made.rest_port == container["ports"][0]["containerPort"]
    mounts = [m["mountPath"] for m in container["volumeMounts"]]
    assert str(Path(made.api_keys_file).parent) in mounts
    sleep = int(re.findall(r"sleep\((\d+)\)", str(container["lifecycle"]))[0])
    grace = kserve("InferenceService")["predictor"]["terminationGracePeriodSeconds"]
    assert made.shutdown_timeout + sleep < grace


def test_probes_are_paths_that_need_no_key() -> None:
    app = build_app(Manager(Registry(())), RestLimits(1, 1))
    served = {pattern.pattern.replace("\\", "") for method, pattern in routes_of(app) if method == "GET"}
    (container,) = kserve("ServingRuntime")["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in served
        assert asked["path"] in OPEN
        assert asked["port"] == container["ports"][0]["containerPort"]

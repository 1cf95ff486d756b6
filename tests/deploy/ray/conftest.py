"""A Ray cluster of several nodes on this machine, made by ray.cluster_utils, with Serve on it.

The data plane is that of OVSERVE_RAY_DATA_PLANE, python or haproxy: Ray reads its environment when it is
imported, so each needs a run of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ovserve.deploy.ray.child import PREFIX
from ovserve.deploy.ray.plan import DEPLOYMENTS, ENVIRONMENT, Plan
from ovserve.deploy.ray.rollout import pack
from ovserve.serving.config.file import GraphsDirectory
from tests.conftest import script_graph
from tests.ports import free_port

DATA_PLANE = os.environ.get("OVSERVE_RAY_DATA_PLANE", "python")
STORE = 80 << 20  # bytes of shared memory per node; nothing of ours is kept there
TEXT = " ".join(f"word{i}" for i in range(2000))


def script(step_seconds: float = 0.005, text: str = TEXT) -> str:
    return json.dumps({"step_seconds": step_seconds, "replies": [{"match": "", "text": text}]})


@dataclass
class Ray:
    """The cluster, and the application under test."""

    cluster: Any
    port: int
    nodes: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add_node(self) -> Any:
        node = self.cluster.add_node(num_cpus=1, object_store_memory=STORE)
        self.nodes.append(node)
        return node

    def deploy(self, plan: Plan) -> str:
        from ovserve.deploy.ray import cluster

        return cluster.deploy(plan, self.cluster.address, "127.0.0.1", self.port)

    def delete(self, name: str = "ovserve") -> None:
        from ovserve.deploy.ray import cluster

        cluster.delete(name)

    def status(self, name: str = "ovserve") -> tuple[list[list[str]], list[str]]:
        from ovserve.deploy.ray import cluster

        return cluster.status(name)

    def servers(self) -> set[int]:
        """The server processes of this cluster's replicas."""
        raylets = {raylet(node) for node in self.nodes}
        found = set()
        for pid in processes("ovserve serve", PREFIX):
            with suppress(FileNotFoundError, ProcessLookupError):
                if parent(parent(pid)) in raylets:
                    found.add(pid)
        return found

    def owns(self, pid: int) -> bool:
        """Whether a process was started by this cluster."""
        raylets = {raylet(node) for node in (self.cluster.head_node, *self.nodes)}
        while pid > 1 and pid not in raylets:
            try:
                pid = parent(pid)
            except (FileNotFoundError, ProcessLookupError):
                return False
        return pid in raylets

    def replicas(self, name: str = "ovserve") -> int:
        """How many run."""
        from ray import serve

        app = serve.status().applications.get(name)
        if app is None:
            return 0
        servers = [of for deployment, of in app.deployments.items() if deployment in DEPLOYMENTS.values()]
        return sum(of.replica_states.get("RUNNING", 0) for of in servers)

    def metric(self, metric: str, name: str = "ovserve") -> dict[str, float]:
        """The sum of a metric's samples, by replica. Not through Serve's queue, in which requests may wait."""
        from ray import serve

        pages = serve.get_app_handle(name).broadcast("scrape").results(timeout_s=30, return_exceptions=True)
        return {
            page["replica"]: sum(
                float(line.split()[-1])
                for line in page["page"].splitlines()
                if line.startswith((f"{metric}{{", f"{metric} "))
            )
            for page in pages
            if not isinstance(page, BaseException)  # of one that has just ended
        }


def processes(*words: str) -> dict[int, str]:
    """Pids and command lines of this user's processes whose command line has all of some words."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found[int(path.parent.name)] = line
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def raylet(node: Any) -> int:
    """The pid of a node's raylet, which starts its replicas."""
    return int(node.all_processes["raylet"][0].process.pid)


def plan_for(directory: Path, **options: Any) -> Plan:
    """A plan for a directory of graphs, with the data plane of this run."""
    given = {"data_plane": DATA_PLANE, "cpus": 1.0, "request_timeout": 60.0, "affinity": "none"} | options
    given["options"] = {"response_store": "off"} | dict(given.get("options", {}))
    return Plan(pack(GraphsDirectory(directory), given.pop("keys", "")), **given)


@pytest.fixture(scope="session")
def ray() -> Iterator[Ray]:
    """Three nodes of one CPU, and a head without any."""
    os.environ.update(ENVIRONMENT[DATA_PLANE])
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112  it ends workers when others fill the machine
    pytest.importorskip("ray.cluster_utils", reason="needs the extra ray: make test-ray")
    import ray as library
    from ray import serve
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE},
    )
    made = Ray(cluster, free_port())
    try:
        for _ in range(3):
            made.add_node()
        library.init(address=cluster.address, namespace="serve", configure_logging=False, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": made.port})
        yield made
    finally:
        serve.shutdown()
        library.shutdown()
        cluster.shutdown()


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """A directory with one graph, `words`, whose scripted engine makes 200 tokens a second."""
    script_graph(tmp_path / "graphs/words", script())
    return tmp_path / "graphs"

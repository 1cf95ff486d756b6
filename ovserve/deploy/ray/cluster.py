"""A Ray cluster as `ovserve deploy ray` uses it: connect, deploy, look at the replicas, delete."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from ovserve.deploy.ray import last_good
from ovserve.deploy.ray.plan import DEPLOYMENTS, ENVIRONMENT, HAPROXY, Plan
from ovserve.errors import LoadError

LOCAL = "local"
REPORT_SECONDS = 30.0
log = logging.getLogger(__name__)


def connect(address: str) -> None:
    """Connect to a cluster; `local` starts one that ends with this process and has its environment.

    Raises LoadError if the cluster is not there.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(
            address=address,
            namespace="serve",
            configure_logging=False,
            log_to_driver=address == LOCAL,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        hint = "start one with `ray start --head`, or give --address local"
        raise LoadError(f"--address {address}: {error}; {hint}") from error


def deploy(plan: Plan, address: str, host: str, port: int) -> str:
    """Deploy or change an application, and return the address of its proxy when it runs. Raises LoadError
    with Serve's reason."""
    for name, value in ENVIRONMENT[plan.data_plane].items():
        os.environ.setdefault(name, value)
    connect(address)
    _check_data_plane(plan)
    from ovserve.deploy.ray.app import application

    try:
        serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
        serve.run(
            application(plan.args, plan.deployment(), plan.version),
            name=plan.name,
            route_prefix="/",
        )
    except (RuntimeError, RayError) as error:
        raise LoadError(f"{plan.name}: {_reason(plan.name) or error}") from error
    return f"http://{host}:{port}"


def status(name: str) -> tuple[list[list[str]], list[str]]:
    """Return a row per replica and version of a graph, and what is wrong. Raises LoadError if there is no
    such application, or none of its replicas answers."""
    if name not in serve.status().applications:
        raise LoadError(f"there is no application {name!r} on this cluster")
    faults = [reason] if (reason := _reason(name)) else []
    answers = serve.get_app_handle(name).broadcast("report")
    rows = []
    for one in answers.results(timeout_s=REPORT_SECONDS, return_exceptions=True):
        if isinstance(one, BaseException):
            faults.append(f"a replica does not answer: {one}")
            continue
        faults += [f"replica {one['replica']}: {one['fault']}"] if one["fault"] else []
        for graph, model in sorted(one["states"].items()):
            for version in model["model_version_status"]:
                rows.append([one["replica"], graph, version["state"], version["status"]["error_message"]])
    return sorted(rows), faults


def delete(name: str) -> None:
    """Delete an application and what is kept for it. Raises LoadError if there is none of that name."""
    if name not in serve.status().applications:
        raise LoadError(f"there is no application {name!r} on this cluster")
    serve.delete(name)
    for deployment in DEPLOYMENTS.values():
        last_good.forget(name, deployment)


def wait() -> None:
    """Wait for Ctrl-C."""
    threading.Event().wait()


def _reason(name: str) -> str:
    """Return why an application does not run, "" if it does."""
    application = serve.status().applications.get(name)
    if application is None or application.status in ("RUNNING", "DEPLOYING"):
        return ""
    parts = [application.message, *(one.message for one in application.deployments.values())]
    return "; ".join(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _check_data_plane(plan: Plan) -> None:
    """Raise LoadError if the cluster was started for another data plane: its processes have read their
    environment."""
    variable: Any = ray.remote(num_cpus=0)(_variable).remote("RAY_SERVE_ENABLE_HA_PROXY")
    there = ray.get(variable) == "1"
    if there != (plan.data_plane == HAPROXY):
        needed = "with" if plan.data_plane == HAPROXY else "without"
        text = f"--data_plane {plan.data_plane} needs a cluster started {needed} RAY_SERVE_ENABLE_HA_PROXY=1"
        raise LoadError(f"{text} in the environment of every node (docs/clusters.md)")


def _variable(name: str) -> str:
    return os.environ.get(name, "")

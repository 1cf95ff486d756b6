"""`ovserve deploy`: run the server on a cluster of another system; `ovserve deploy ray` on Ray Serve."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovserve.cli.parser import EXIT_USAGE, Commands, Parser, add_graph_options, graph_options, spelling, table
from ovserve.cli.progress import Shown
from ovserve.cli.pull import TASKS
from ovserve.cli.serve import add_options
from ovserve.deploy.ray.plan import HAPROXY, NONE, PYTHON, SESSION
from ovserve.errors import InvalidArgument, LoadError, extra
from ovserve.server.settings import OPTIONS, Settings

if TYPE_CHECKING:
    from ovserve.deploy.ray.plan import Plan
    from ovserve.serving.settings import ServableSpec

# Options that the replica sets, or that say what is served, which travels as its content.
SERVED = {"source_model", "model_repository_path", "model_name", "model_path", "config_path", "graphs_dir"}
TRAVELS = {*SERVED, "api_keys_file"}
NOT_HERE = {
    "rest_port", "rest_bind_address", "grpc_port", "grpc_bind_address", "grpc_channel_arguments",
    "tls_cert_file",
    "tls_key_file", "tls_client_ca_file", "api_key_file", "metrics_port", "metrics_bind_address", "console",
    "console_write", "console_capture", "file_system_poll_wait_seconds",
}  # fmt: skip
ONGOING_DEFAULT = 32  # where the graph leaves max_num_seqs at 256: more is not faster on a CPU


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("deploy", help="run the server on a cluster")
    systems: Commands = parser.add_subparsers(dest="system", required=True, parser_class=Parser)
    ray = systems.add_parser(
        "ray",
        help="run replicas on Ray Serve",
        usage="ovserve deploy ray [SOURCE] [--OPTION VALUE]...",
        description="Deploys what `ovserve serve` would serve as an application of Ray Serve, or changes "
        "that of the same name: running replicas load changed graphs. With --write_yaml it writes the"
        "  configuration for `serve deploy` instead. Options of `ovserve serve` apply to each replica. "
        "Described in docs/clusters.md.",
    )
    ray.add_argument("source", nargs="?", metavar="SOURCE", help="what to serve, as for `ovserve serve`")
    _add_own(ray)
    add_options(ray, NOT_HERE)
    add_graph_options(ray, "Options of the graph, for a model without one (docs/cli.md)")
    ray.add_argument(
        "--task", choices=TASKS, help="what the graph does (default: what the model's files say)"
    )
    ray.set_defaults(run=_run)


def _add_own(ray: argparse.ArgumentParser) -> None:
    group = ray.add_argument_group("Ray Serve")
    add = group.add_argument
    add("--name", default="ovserve", help="name of the application (default: ovserve)")
    add(
        "--address",
        default="auto",
        help="the cluster: host:port, auto, or local to start one (default: auto)",
    )
    add("--replicas", type=_count, metavar="COUNT", help="fixed number of replicas (default: 1)")
    add("--min_replicas", type=_count, metavar="COUNT", help="fewest replicas, with --max_replicas")
    add("--max_replicas", type=_count, metavar="COUNT", help="most replicas: scale with the load")
    add("--cpus", type=_number, default=1.0, help="CPUs that a replica reserves on its node (default: 1)")
    add(
        "--max_ongoing_requests",
        type=_count,
        metavar="COUNT",
        help="requests that a replica gets at the same time; the others wait in Serve (default: max_num_seqs "
        f"of the graph, at most {ONGOING_DEFAULT})",
    )
    add("--affinity", choices=(SESSION, NONE), default=SESSION, help="send a session to the replica that has "
        "its prefix cached (default: session)")  # fmt: skip
    add("--data_plane", choices=(PYTHON, HAPROXY), default=PYTHON, help="who passes requests to replicas; "
        "haproxy needs variables in every node's environment (default: python)")  # fmt: skip
    add(
        "--upscale_delay",
        type=_number,
        default=5.0,
        metavar="SECONDS",
        help="of load before replicas are added (default: 5)",
    )
    add(
        "--downscale_delay",
        type=_number,
        default=300.0,
        metavar="SECONDS",
        help="without it before some end (default: 300)",
    )
    add(
        "--http_host",
        default="127.0.0.1",
        help="address of Serve's proxy, if this starts Serve (default: 127.0.0.1)",
    )
    add("--http_port", type=int, default=8000, help="its port (default: 8000)")
    add(
        "--write_yaml",
        type=Path,
        metavar="FILE",
        help="write a configuration for `serve deploy`, - for stdout",
    )
    add("--status", action="store_true", help="print what the replicas serve, and end")
    add("--delete", action="store_true", help="delete the application, and end")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")
    return value


def _run(arguments: argparse.Namespace) -> int:
    if arguments.replicas and (arguments.min_replicas or arguments.max_replicas):
        print("ovserve deploy ray: give --replicas, or --min_replicas and --max_replicas", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    if arguments.status or arguments.delete:
        return _existing(arguments)
    plan = plan_of(arguments)
    if arguments.write_yaml is not None:
        return _write(arguments, plan)
    cluster = _cluster()
    address = cluster.deploy(plan, arguments.address, arguments.http_host, arguments.http_port)
    print(f"{plan.name}: running at {address}/v3")  # noqa: T201
    faults = _print_status(arguments)
    if arguments.address == cluster.LOCAL:
        cluster.wait()
    return 1 if faults else 0


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the plan of a command line. Raises an OvserveError that names the flag or the file."""
    from ovserve.access.keys import load_keys
    from ovserve.deploy.ray.plan import Plan
    from ovserve.deploy.ray.rollout import pack
    from ovserve.server.settings import problem
    from ovserve.server.source import resolve

    values = {o.name: getattr(arguments, o.name) for o in OPTIONS if hasattr(arguments, o.name)}
    if arguments.source:
        values["source_model"] = arguments.source
    settings = Settings(**values)
    if fault := problem(settings):
        raise InvalidArgument(fault)
    served = resolve(settings, graph_options(arguments), Shown(sys.stderr), arguments.task or "")
    keys = ""
    if settings.api_keys_file:
        load_keys(Path(settings.api_keys_file))
        keys = Path(settings.api_keys_file).read_text()
    most = asyncio.run(_check(served.repository.read().specs))
    options = {name: spelling(value) for name, value in values.items() if name not in TRAVELS}
    options.setdefault("response_store", "off")
    low = arguments.replicas or arguments.min_replicas or 1
    return Plan(
        pack(served.repository, keys),
        options,
        name=arguments.name,
        min_replicas=low,
        max_replicas=arguments.replicas or arguments.max_replicas or low,
        cpus=arguments.cpus,
        max_ongoing=arguments.max_ongoing_requests or 0,
        max_num_seqs=min(most or ONGOING_DEFAULT, ONGOING_DEFAULT),
        max_queue=settings.max_queue,
        affinity=arguments.affinity,
        data_plane=arguments.data_plane,
        upscale_delay=arguments.upscale_delay,
        downscale_delay=arguments.downscale_delay,
        load_timeout=settings.load_timeout,
        request_timeout=settings.request_timeout,
    )


async def _check(specs: Sequence[ServableSpec]) -> int:
    """Return the smallest `max_num_seqs` of the engines, 0 if no engine has one. Raises LoadError with what
    `ovserve check` would report for each graph."""
    from ovserve.calculators.shipped import shipped_registry
    from ovserve.sandbox.templates import Templates
    from ovserve.serving.check import report

    registry, templates = shipped_registry(), Templates()
    plain = [spec.name for spec in specs if spec.plain]
    faults: list[str] = []
    limits: list[int] = []
    try:
        for spec in specs:
            one = await report(spec, registry, templates, None, plain)
            faults += [f"{spec.label}: {error}" for error in one.errors]
            limits += [number for model in one.models if (number := getattr(model.spec, "max_num_seqs", 0))]
    finally:
        await templates.stop()
    if faults or not specs:
        raise LoadError(f"not deployed: {'; '.join(faults) or 'nothing is served'}")
    return min(limits, default=0)


def _write(arguments: argparse.Namespace, plan: Plan) -> int:
    from ovserve.deploy.ray.plan import to_yaml

    text = to_yaml(plan.document(arguments.http_host, arguments.http_port), plan.data_plane)
    if str(arguments.write_yaml) == "-":
        sys.stdout.write(text)
        return 0
    try:
        arguments.write_yaml.write_text(text)
    except OSError as error:
        raise LoadError(f"cannot be written: {error.strerror}", file=str(arguments.write_yaml)) from error
    print(f"written: {arguments.write_yaml}; next: serve deploy {arguments.write_yaml}")  # noqa: T201
    return 0


def _existing(arguments: argparse.Namespace) -> int:
    cluster = _cluster()
    cluster.connect(arguments.address)
    if arguments.delete:
        cluster.delete(arguments.name)
        print(f"{arguments.name}: deleted")  # noqa: T201
        return 0
    return 1 if _print_status(arguments) else 0


def _print_status(arguments: argparse.Namespace) -> bool:
    """Print a row per replica and graph; return whether there is a fault."""
    rows, faults = _cluster().status(arguments.name)
    print(table(["replica", "name", "state", "message"], rows))  # noqa: T201
    for fault in faults:
        print(f"ovserve deploy ray: {fault}", file=sys.stderr)  # noqa: T201
    return bool(faults)


def _cluster() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from ovserve.deploy.ray import cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise LoadError(f"`ovserve deploy ray` needs the extra ray; {extra('ray')}") from None
    return cluster

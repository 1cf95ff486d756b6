"""`ovserve doctor`: processor, memory, versions, devices, ports and directories, before a server starts."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from ovserve.cli.parser import EXIT_FAILED, Commands
from ovserve.errors import InvalidArgument

PORTS = ("rest_port", "grpc_port", "metrics_port")


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the machine",
        description="Checks what a server on this machine would use, with the options of the environment "
        "(OVSERVE_...): processor, memory, versions, devices and drivers, ports, directories. Says what will "
        "be slow and why. Exits with 1 if it finds a problem that stops a server.",
    )
    for name in PORTS:
        parser.add_argument(
            f"--{name}", type=int, help=f"check this port instead of the environment's {name}"
        )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import msgspec

    from ovserve.server.environment import from_environment
    from ovserve.server.settings import Settings, problem
    from ovserve.tools.doctor import (
        check_cache,
        check_machine,
        check_models,
        check_ports,
        check_software,
        check_store,
        report,
        text,
    )

    ports = {name: port for name in PORTS if (port := getattr(arguments, name)) is not None}
    settings = replace(Settings(**from_environment(os.environ)), **ports)
    if fault := problem(settings):
        raise InvalidArgument(fault)
    findings = [*check_machine(settings.max_connections), *check_software()]
    findings += check_ports({name: getattr(settings, name) for name in PORTS})
    if settings.response_store == "on":
        findings.append(check_store(Path(os.path.expanduser(settings.response_store_path))))
    findings.append(check_models(Path(os.path.expanduser(settings.model_repository_path))))
    findings.append(check_cache(settings.cache_dir))
    result = report(findings)
    print(msgspec.json.encode(result).decode() if arguments.json else text(result))  # noqa: T201
    return 0 if result.ok else EXIT_FAILED

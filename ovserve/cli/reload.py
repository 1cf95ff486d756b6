"""`ovserve reload`: make a running server apply its configuration, and print the result."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ovserve.cli.parser import EXIT_FAILED, Commands, table
from ovserve.errors import OvserveError


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "reload",
        help="make a running server load changed files",
        description="Calls POST /v1/config/reload and prints the states. Exit code 1: something was not "
        "loaded, or the server cannot be reached. The key is the first line of --api_key_file, or the "
        "variable API_KEY.",
    )
    parser.add_argument("url", help="address of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--api_key_file", type=Path, help="file whose first line is the key")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.cli.chat.connection import Connection, RequestFailed

    connection = Connection(arguments.url, read_key(arguments.api_key_file))
    try:
        is_new, states = connection.reload()
    except RequestFailed as error:
        print(f"ovserve reload: {error.status}: {error}", file=sys.stderr)  # noqa: T201
        with suppress(OvserveError):
            print(_states(connection.get("/v1/config")))  # noqa: T201
        return EXIT_FAILED
    print("reloaded" if is_new else "nothing had changed")  # noqa: T201
    print(_states(states))  # noqa: T201
    return 0


def read_key(file: Path | None) -> str:
    """Raises LoadError."""
    from ovserve.access.keys import load_key

    return load_key(file) if file is not None else os.environ.get("API_KEY", "")


def _states(states: dict[str, Any]) -> str:
    rows = [
        [name, version["state"], version["status"]["error_code"], version["status"]["error_message"]]
        for name, model in states.items()
        for version in model["model_version_status"]
    ]
    return table(["name", "state", "code", "message"], rows) if rows else "nothing is served"

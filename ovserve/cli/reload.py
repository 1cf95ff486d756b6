"""`ovserve reload`: make a running server apply its configuration, and print the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ovserve.cli.parser import EXIT_FAILED, Commands, table
from ovserve.errors import InvalidArgument, LoadError

RELOAD_TIMEOUT_SECONDS = 3600.0  # seconds; a reload answers when all models are loaded


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
    url = arguments.url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(f"expected an address such as http://127.0.0.1:8000, got {arguments.url!r}")
    key = read_key(arguments.api_key_file)
    status, body = _call(f"{url}/v1/config/reload", "POST", key)
    if status not in (200, 201):
        print(f"ovserve reload: {status}: {_error(body)}", file=sys.stderr)  # noqa: T201
        status_of_all, states = _call(f"{url}/v1/config", "GET", key)
        if status_of_all == 200:
            print(_states(states))  # noqa: T201
        return EXIT_FAILED
    print("reloaded" if status == 201 else "nothing had changed")  # noqa: T201
    print(_states(body))  # noqa: T201
    return 0


def read_key(file: Path | None) -> str:
    if file is None:
        return os.environ.get("API_KEY", "")
    try:
        return file.read_text().split("\n")[0].strip()
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(file)) from error


def _call(url: str, method: str, key: str) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=RELOAD_TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
    except (URLError, OSError) as error:
        raise LoadError(f"{url}: {getattr(error, 'reason', error)}") from error


def _error(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")


def _states(body: bytes) -> str:
    rows = [
        [name, version["state"], version["status"]["error_code"], version["status"]["error_message"]]
        for name, model in json.loads(body).items()
        for version in model["model_version_status"]
    ]
    return table(["name", "state", "code", "message"], rows) if rows else "nothing is served"

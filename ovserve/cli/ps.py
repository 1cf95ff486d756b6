"""`ovserve ps`: the graphs of a running server with state, memory, requests and tokens per second."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovserve.cli.parser import Commands, size, table
from ovserve.cli.reload import read_key

if TYPE_CHECKING:
    from ovserve.cli.chat.connection import Connection

DEFAULT_URL = "http://127.0.0.1:8000"
HEADER = ("NAME", "STATE", "CONTEXT", "MEMORY", "CACHE", "RUNNING", "WAITING", "TOKENS/S", "TOKENS")
SAMPLE_SECONDS = 1.0
ANSWER_TIMEOUT_SECONDS = 10.0  # for an answer
METRIC = re.compile(r'^(\w+)\{name="((?:[^"\\]|\\.)*)"\} (\S+)$', re.MULTILINE)


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "ps",
        help="show the graphs of a running server",
        description="Shows state, context, memory of the engine, use of its KV cache, running and waiting "
        "requests, and generated tokens. On a terminal it refreshes every second, until Ctrl-C.",
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("OVSERVE_URL") or DEFAULT_URL,
        help=f"address of the server (default: {DEFAULT_URL})",
    )
    parser.add_argument("--api_key_file", type=Path, help="file whose first line is the key")
    parser.add_argument("--once", action="store_true", help="print once, also on a terminal")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.cli.chat.connection import Connection

    connection = Connection(arguments.url, read_key(arguments.api_key_file))
    before = _metrics(connection)
    time.sleep(SAMPLE_SECONDS)
    if arguments.once or not sys.stdout.isatty():
        print(table(HEADER, _rows(connection, before, _metrics(connection), SAMPLE_SECONDS)))  # noqa: T201
        return 0
    return _refresh(connection, before)


def _refresh(connection: Connection, before: dict[str, dict[str, float]]) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic() - SAMPLE_SECONDS
    with Live(console=Console(), auto_refresh=False, screen=False) as live:
        while True:
            now, moment = _metrics(connection), time.monotonic()
            rows = _rows(connection, before, now, moment - began)
            live.update(Text.from_ansi(table(HEADER, rows), no_wrap=True), refresh=True)
            before, began = now, moment
            time.sleep(SAMPLE_SECONDS)


def _rows(
    connection: Connection,
    before: dict[str, dict[str, float]],
    now: dict[str, dict[str, float]],
    seconds: float,
) -> list[list[str]]:
    rows = []
    memory = _memory(connection)
    for model in connection.get("/v3/models", ANSWER_TIMEOUT_SECONDS)["data"]:
        name = model["id"]
        counts = now.get(name, {})
        tokens = counts.get("ovserve_generated_tokens_total", 0)
        rate = (tokens - before.get(name, {}).get("ovserve_generated_tokens_total", 0)) / seconds
        figures = [
            f"{counts.get('ovserve_kv_cache_usage_ratio', 0):.0%}",
            f"{counts.get('ovserve_requests_running', 0):.0f}",
            f"{counts.get('ovserve_requests_waiting', 0) + counts.get('ovserve_queue_requests', 0):.0f}",
            f"{max(rate, 0):.1f}",
            f"{tokens:.0f}",
        ]
        rows.append(
            [
                name,
                model.get("state_detail", model.get("state", "")).upper(),
                str(model.get("max_model_len") or "-"),
                size(memory[name]) if name in memory else "-",
                *(figures if counts else "-" * len(figures)),
            ]
        )
    return rows


def _memory(connection: Connection) -> dict[str, int]:
    listed: list[dict[str, Any]] = connection.get("/api/ps", ANSWER_TIMEOUT_SECONDS)["models"]
    return {one["name"].removesuffix(":latest"): one["size"] for one in listed}


def _metrics(connection: Connection) -> dict[str, dict[str, float]]:
    """Return the metrics by graph; none where the server shows none."""
    from ovserve.cli.chat.connection import RequestFailed

    try:
        text = connection.text("/metrics", ANSWER_TIMEOUT_SECONDS)
    except RequestFailed as error:
        if error.status == 404:
            return {}
        raise
    models: dict[str, dict[str, float]] = {}
    for metric, name, value in METRIC.findall(text):
        models.setdefault(name, {})[metric] = float(value)
    return models

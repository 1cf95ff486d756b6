"""`ovserve batch`: answer each line of a file with requests, without a server.

It runs a batch (`services/responses/batches.py`) on a server of its own, whose state is kept next to the
output until that is complete. So a run that was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from ovserve.cli.parser import EXIT_FAILED, Commands, add_graph_options, graph_options
from ovserve.errors import InvalidArgument, LoadError, NotFound
from ovserve.pull.packaged import DEFAULT_MODEL
from ovserve.serving.config.file import replace_file

EXIT_SOME_FAILED = 3
POLL_SECONDS = 0.5
LINE_SECONDS = 10.0  # between two lines of progress, where there is no terminal
PACE_SECONDS = 30.0  # over which tokens per second are counted
MAX_SHOWN = 5  # kinds of failures
BAR_COLUMNS, MIN_BAR_COLUMNS = 30, 5
WITHOUT_BOUND = str(10**9)


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "batch",
        help="answer a file of requests, without a server",
        description="Answers each line of a file in the format of OpenAI's Batch API and writes the results "
        "of all lines to another one. The first line's model is the name that MODEL gets. A run that was "
        "broken off goes on when it is repeated. Exit code 3: some lines failed.",
    )
    parser.add_argument("input", type=Path, metavar="IN.jsonl", help="the requests")
    parser.add_argument(
        "-o", "--output-file", type=Path, metavar="OUT.jsonl", required=True, help="for the results"
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"a model as for `ovserve run` (default: {DEFAULT_MODEL})"
    )
    add_graph_options(parser, "options of the graph")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.cli.chat.connection import own_server

    source, output = arguments.input, arguments.output_file
    if not source.is_file():
        raise NotFound(f"{source} is not a file")
    state = output.with_name(output.name + ".state")
    if output.exists():
        raise InvalidArgument(f"-o: {output} exists; remove it, or name another file")
    name, endpoint = _first(source)
    _claim(state, source, arguments.model)
    flags = ["--model_name", name, "--max_file_bytes", WITHOUT_BOUND, "--max_batch_requests", WITHOUT_BOUND]
    flags += ["--file_store_max_bytes", "0", "--batch_window_seconds", WITHOUT_BOUND]
    try:
        with own_server(arguments.model, graph_options(arguments), flags, state / "store.db") as connection:
            batch = _followed(connection, _begun(connection, source, endpoint))
            code = _finish(connection, batch, output)
    except KeyboardInterrupt:
        sys.stderr.write(f"\novserve batch: broken off; the same command goes on ({state})\n")
        raise
    shutil.rmtree(state)
    return code


def _first(source: Path) -> tuple[str, str]:
    """Return the model and the URL of the first line. Raises InvalidArgument."""
    with source.open("rb") as file:
        for data in file:
            if data.strip():
                break
        else:
            raise InvalidArgument(f"{source}: has no requests")
    try:
        line = json.loads(data.decode("utf-8-sig"))
        name, url = line["body"]["model"], line["url"]
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(f"{source}: line 1: expected an object with url and body.model") from None
    if not isinstance(name, str) or not isinstance(url, str):
        raise InvalidArgument(f"{source}: line 1: url and body.model: expected text")
    return name, url


def _claim(state: Path, source: Path, model: str) -> None:
    """Make the directory of this run. Raises InvalidArgument where there is one of another run."""
    stat = source.stat()
    run = {"input": str(source.absolute()), "bytes": stat.st_size, "time": stat.st_mtime_ns, "model": model}
    path = state / "run.json"
    try:
        state.mkdir(exist_ok=True)
        if not path.exists():
            replace_file(path, json.dumps(run).encode())
        elif json.loads(path.read_bytes()) != run:
            raise InvalidArgument(f"{state} is of a run with another input or model; remove it to begin anew")
    except OSError as error:
        raise LoadError(f"cannot be written: {error.strerror}", file=str(state)) from error


def _begun(connection: Any, source: Path, endpoint: str) -> dict[str, Any]:
    """Return the batch that an earlier run has begun, or begin one."""
    if earlier := connection.get("/v1/batches")["data"]:
        return dict(earlier[0])
    with source.open("rb") as file:
        uploaded = connection.upload("/v1/files", file, source.stat().st_size, {"purpose": "batch"})
    body = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
    batch: dict[str, Any] = connection.post("/v1/batches", body)
    return batch


def _followed(connection: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Show how far it is until it has ended."""
    from ovserve.api.openai.batches import LIVING

    out, shown_at = sys.stderr, 0.0
    samples: list[tuple[float, int, int]] = []  # time, lines, tokens
    while batch["status"] in LIVING:
        time.sleep(POLL_SECONDS)
        batch = connection.get(f"/v1/batches/{batch['id']}")
        counts, now = batch["request_counts"], time.monotonic()
        ended = counts["completed"] + counts["failed"]
        samples.append((now, ended, batch["usage"]["total_tokens"]))
        while samples[0][0] < now - PACE_SECONDS:
            samples.pop(0)
        if batch["status"] == "in_progress" and (out.isatty() or now - shown_at >= LINE_SECONDS):
            shown_at = now
            text = f"{ended:,} of {counts['total']:,} lines, {counts['failed']:,} failed"
            text += _pace(samples, counts["total"])
            out.write(f"\r\x1b[K{_with_bar(text, ended / counts['total'])}" if out.isatty() else f"{text}\n")
            out.flush()
    if out.isatty():
        out.write("\r\x1b[K")
    return batch


def _pace(samples: list[tuple[float, int, int]], total: int) -> str:
    (begin, first, before), (now, last, after) = samples[0], samples[-1]
    if last <= first:
        return ""
    pace, seconds = (after - before) / (now - begin), (total - last) * (now - begin) / (last - first)
    return f", {pace:,.0f} tokens/s, {timedelta(seconds=round(seconds))} left"


def _with_bar(text: str, part: float) -> str:
    """Return one line of the terminal; a line that wraps could not be written over."""
    columns = shutil.get_terminal_size().columns - 1
    width = min(BAR_COLUMNS, columns - len(text) - 1)
    bar = f"{'━' * int(width * part):╌<{width}} " if width >= MIN_BAR_COLUMNS else ""
    return f"{bar}{text}"[:columns]


def _finish(connection: Any, batch: dict[str, Any], output: Path) -> int:
    """Write the results of all lines, and print what failed. Return the exit code."""
    if batch["status"] != "completed":
        for error in (batch["errors"] or {"data": []})["data"]:
            place = f"line {error['line']}: " if error["line"] else ""
            sys.stderr.write(f"ovserve batch: {place}{error['message']}\n")
        return EXIT_FAILED
    part = output.with_name(output.name + ".part")
    with part.open("wb") as file:
        for id_ in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            for chunk in connection.download(f"/v1/files/{id_}/content"):
                file.write(chunk)
    part.rename(output)
    counts, usage = batch["request_counts"], batch["usage"]
    seconds = max(1, batch["finalizing_at"] - batch["in_progress_at"])
    sys.stderr.write(
        f"{counts['completed']:,} lines, {counts['failed']:,} failed; {usage['input_tokens']:,} and "
        f"{usage['output_tokens']:,} tokens, {usage['total_tokens'] / seconds:,.0f} tokens/s\n"
    )
    if not counts["failed"]:
        return 0
    for message, count in _failures(output).most_common(MAX_SHOWN):
        sys.stderr.write(f"  {count:,} failed: {message}\n")
    return EXIT_SOME_FAILED


def _failures(output: Path) -> Counter[str]:
    failures: Counter[str] = Counter()
    with output.open("rb") as file:
        for data in file:
            response = json.loads(data)["response"]
            if not 200 <= response["status_code"] < 300:
                failures[f"{response['status_code']} {_message(response['body'])}"[:200]] += 1
    return failures


def _message(body: Any) -> str:
    """Return the message of an error; the whole body of a graph that has another form of errors."""
    try:
        return str(body["error"]["message"])
    except (KeyError, TypeError):
        return json.dumps(body)

"""`ovserve run`: chat with a model in the terminal, or answer one prompt for a script."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovserve.cli.parser import Commands, add_graph_options, graph_options
from ovserve.cli.ps import DEFAULT_URL
from ovserve.cli.reload import read_key
from ovserve.errors import InvalidArgument, LoadError, OvserveError

if TYPE_CHECKING:  # imported where needed: --help needs none of them
    from ovserve.cli.chat.connection import Connection
    from ovserve.cli.chat.conversation import Conversation

INTERRUPTED_EXIT_CODE = 130
CHAT = "chat/completions"


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="chat with a model in the terminal",
        description="Chats with MODEL: one of a running server, a short name or an id on the hub, which are "
        "pulled if needed, a .gguf file, or a directory with a model or a graph. Without MODEL it is the "
        "first of a running server, else the default model. With --prompt, or with text on stdin, it prints "
        "one answer and ends.",
    )
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="a model, or its path")
    parser.add_argument("-p", "--prompt", help="answer this and end; stdin, if piped, is added to it")
    parser.add_argument("--system", default="", help="the system prompt")
    parser.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="show the model an image; may be repeated",
    )
    parser.add_argument(
        "--json-schema", "--json_schema", metavar="FILE|JSON", help="hold the answer to a JSON schema"
    )
    for name, kind in (("temperature", float), ("top_p", float), ("max_tokens", int), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, help=f"as the parameter {name} of a request")
    parser.add_argument(
        "--reasoning_effort", metavar="LEVEL", help="none, minimal, low, medium, high, xhigh or max"
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("OVSERVE_URL", ""),
        help="use this server, by its address or as HOST:PORT (default: one of this user that serves MODEL, "
        f"{DEFAULT_URL} first; else one of its own)",
    )
    parser.add_argument("--api_key_file", type=Path, help="file whose first line is the server's key")
    parser.add_argument("--verbose", action="store_true", help="print tokens and times after each answer")
    add_graph_options(parser, "options of the graph, for a server of its own")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.cli.chat.conversation import Conversation, image_url

    for image in arguments.image:
        image_url(image)  # what is wrong with it is better said before a model is loaded
    options = _options(arguments)
    prompt = _prompt(arguments.prompt)
    with _connected(arguments) as (connection, model, context):
        chat = Conversation(connection, model, context, arguments.system, options)
        for image in arguments.image:
            chat.attach(image)
        if prompt is not None:
            return _once(chat, prompt, verbose=arguments.verbose)
        from ovserve.cli.chat.terminal import Chat

        Chat(chat, verbose=arguments.verbose).run()
    return 0


def _once(chat: Conversation, prompt: str, *, verbose: bool) -> int:
    """Write one answer as it comes; reasoning is left out."""
    from ovserve.cli.chat.conversation import stats_lines
    from ovserve.cli.chat.terminal import Wrapped, visible

    out, text = sys.stdout, ""
    terminal = Wrapped(out) if out.isatty() else None
    try:
        for chunk in chat.ask(prompt):
            if not chunk.reasoning:
                text += chunk.text
                if terminal is not None:
                    terminal.write(visible(chunk.text))
                else:
                    out.write(chunk.text)
                    out.flush()
        if not text.endswith("\n"):
            out.write("\n")
            out.flush()
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # the interpreter flushes at its end
        return 0
    stats = chat.last
    if stats is not None and stats.cut:
        sys.stderr.write(f"ovserve run: the answer was {stats.cut}\n")
    if stats is not None and verbose:
        sys.stderr.write("\n".join(stats_lines(stats, chat.context)) + "\n")
    return 0


def _prompt(prompt: str | None) -> str | None:
    """Return the one prompt there is, or None for a chat."""
    piped = "" if sys.stdin.isatty() else _decoded(sys.stdin.buffer.read(), "stdin")
    prompt = prompt if prompt is None else _decoded(os.fsencode(prompt), "--prompt")
    if prompt is None:
        if sys.stdin.isatty():
            return None
        if not piped.strip():
            raise InvalidArgument("stdin is empty, and there is no --prompt")
        return piped
    return f"{prompt}\n\n{piped}" if piped.strip() else prompt


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{what} is not UTF-8: byte {error.start} is {data[error.start]:#x}") from None


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort")
    options = {n: value for n in names if (value := getattr(arguments, n)) is not None}
    if arguments.json_schema is not None:
        schema = {"name": "answer", "schema": _schema(arguments.json_schema), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _schema(text: str) -> Any:
    try:
        if not text.lstrip().startswith("{"):
            text = Path(os.path.expanduser(text)).read_text()
        return json.loads(text)
    except OSError as error:
        raise LoadError(f"--json-schema: cannot be read: {error.strerror}", file=text) from error
    except ValueError as error:
        raise InvalidArgument(f"--json-schema: is not JSON: {error}") from None


@contextmanager
def _connected(arguments: argparse.Namespace) -> Iterator[tuple[Connection, str, int]]:
    """Yield a server that is ready, its model, and the model's context."""
    from ovserve.cli.chat.connection import Connection, own_server

    options = graph_options(arguments)
    elsewhere = bool(arguments.url)
    for address in (arguments.url,) if elsewhere else () if options else _addresses():
        connection = Connection(address, read_key(arguments.api_key_file))
        if served := _served(connection, arguments.model, required=elsewhere):
            yield connection, *served
            return
    with own_server(arguments.model, options) as connection:
        served = _served(connection, "", required=True)
        assert served is not None, "required"
        yield connection, *served


def _addresses() -> list[str]:
    from ovserve.server.environment import running_servers

    return list(dict.fromkeys((DEFAULT_URL, *running_servers())))


def _served(connection: Connection, model: str, *, required: bool) -> tuple[str, int] | None:
    """Return the model and its context, or None if there is no such server or it does not serve it. Without a
    name it is the first that chats."""
    from ovserve.cli.chat.connection import PROBE_SECONDS

    timeout = None if required else PROBE_SECONDS
    try:
        listed = connection.get("/v3/models", timeout=timeout)["data"]
        usable = [m for m in listed if m.get("state", "AVAILABLE") == "AVAILABLE"]
        if not required and any(m.get("owned_by") != "ovserve" for m in listed):
            return None  # another program has the port
        if not model:
            capabilities = connection.get("/v3/capabilities", timeout=timeout)["data"]
            chat = {m["model"] for m in capabilities for e in m["endpoints"] if e["endpoint"] == CHAT}
            usable = [m for m in usable if m["id"] in chat]
    except (OvserveError, KeyError, TypeError, AttributeError):
        if required:
            raise
        return None
    for one in usable:
        if model in ("", one["id"]):
            return one["id"], one.get("max_model_len") or 0
    if required:
        names = ", ".join(m["id"] for m in listed) or "nothing"
        what = repr(model) if model else "a model that chats"
        raise InvalidArgument(f"{connection.address} does not serve {what}, but {names}")
    return None

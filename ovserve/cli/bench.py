"""`ovserve bench`: load a running server with streamed chats, and report what its clients measure."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ovserve.cli.parser import EXIT_FAILED, Commands, table
from ovserve.errors import InvalidArgument

PROMPT = "Tell a story about a lighthouse."
DEFAULT_CONCURRENCY = 4


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="load a running server, and print what its clients measure",
        description="Sends streamed chats to any server with OpenAI's chat/completions: from several clients "
        "that send a new request after each answer or, with --rate, at random times that do not depend on "
        "earlier answers. Exit code 1: a request failed. The key is the variable API_KEY.",
    )
    parser.add_argument("url", help="base address, such as http://127.0.0.1:8000/v3")
    parser.add_argument("--model", required=True, help="name of the model")
    parser.add_argument("--requests", type=int, default=32, help="number of requests (default: 32)")
    parser.add_argument(
        "--concurrency", type=int, help=f"concurrent clients (default: {DEFAULT_CONCURRENCY})"
    )
    parser.add_argument("--rate", type=float, help="requests per second, instead of --concurrency")
    parser.add_argument(
        "--max_tokens", default="64", help="limit of each answer, or a range such as 16-256 (default: 64)"
    )
    parser.add_argument("--prompt", help=f"the prompt (default: {PROMPT})")
    parser.add_argument(
        "--prompts", type=Path, help="file with prompts, one per line, text or JSON with `prompt`"
    )
    parser.add_argument("--prompt_words", help="generate prompts of so many words, such as 500 or 100-2000")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of lengths, times and generated prompts (default: 0)"
    )
    parser.add_argument(
        "--json", type=Path, help="file for all numbers, including each request's; - for stdout"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.serving.config.file import replace_file
    from ovserve.tools import bench
    from ovserve.tools.bench import lengths
    from ovserve.tools.tuning.prompts import read

    _check(arguments)
    flags = [name for name in ("prompt", "prompts", "prompt_words") if getattr(arguments, name) is not None]
    if len(flags) > 1:
        raise InvalidArgument(f"--{flags[0]} and --{flags[1]}: give only one of them")
    made_up = lengths(arguments.prompt_words, "--prompt_words") if arguments.prompt_words else None
    todo = bench.jobs(
        arguments.requests,
        read(arguments.prompts) if arguments.prompts else [arguments.prompt or PROMPT],
        lengths(arguments.max_tokens, "--max_tokens"),
        prompt=made_up,
        rate=arguments.rate,
        seed=arguments.seed,
    )
    target = bench.Target(arguments.url, arguments.model, os.environ.get("API_KEY", ""))
    answers, seconds = bench.run(target, todo, arguments.concurrency or DEFAULT_CONCURRENCY)
    parameters = {
        k: str(v) if isinstance(v, Path) else v
        for k, v in vars(arguments).items()
        if k not in ("run", "command")
    }
    document = bench.document(answers, seconds, parameters)
    if str(arguments.json) == "-":
        print(json.dumps(document, indent=1))  # noqa: T201
    else:
        lines, rows = bench.text(document)
        print("\n".join(lines))  # noqa: T201
        if rows:
            print("\n" + table(["milliseconds", *bench.PARTS], rows))  # noqa: T201
        if arguments.json:
            replace_file(arguments.json, f"{json.dumps(document, indent=1)}\n".encode())
    return EXIT_FAILED if document["failed"] else 0


def _check(arguments: argparse.Namespace) -> None:
    from ovserve.cli.chat.connection import address_parts

    address_parts(arguments.url)
    for name in ("requests", "concurrency"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise InvalidArgument(f"--{name}: expected at least 1, got {value}")
    if arguments.rate is not None:
        if not 0 < arguments.rate < float("inf"):
            raise InvalidArgument(f"--rate: expected more than 0 requests per second, got {arguments.rate:g}")
        if arguments.concurrency is not None:
            raise InvalidArgument("--rate and --concurrency: give only one of them")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise InvalidArgument(f"--json: the directory {arguments.json.parent} does not exist")
    if arguments.json is not None and arguments.json.is_dir():
        raise InvalidArgument(f"--json: {arguments.json} is a directory; name a file in it")

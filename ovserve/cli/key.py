"""`ovserve key`: generate an API key for --api_keys_file."""

from __future__ import annotations

import argparse
import sys

from ovserve.cli.parser import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("key", help="generate an API key for --api_keys_file")
    parser.add_argument("name", help="name of the key's owner")
    parser.add_argument(
        "--stdin", action="store_true", help="hash the key read from stdin instead of generating one"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Print the entry to stdout, so that it can be appended to the file; the key to stderr, once."""
    from ovserve.access.keys import check_own_key, entry_text, new_key

    key = sys.stdin.readline().strip() if arguments.stdin else new_key()
    check_own_key(key)
    print(entry_text(arguments.name, key))  # noqa: T201
    if not arguments.stdin:
        print(f"the key, which is shown only once: {key}", file=sys.stderr)  # noqa: T201
    return 0

"""`ovserve key`: make an API key for --api_keys_file."""

from __future__ import annotations

import argparse
import sys

from ovserve.cli.parser import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("key", help="make an API key for --api_keys_file", allow_abbrev=False)
    parser.add_argument("name", help="whose key it is")
    parser.add_argument(
        "--stdin", action="store_true", help="hash the key that is written to stdin, make none"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """The entry to stdout, so that it can be appended to the file; the key to stderr, once."""
    from ovserve.access.keys import check_own_key, entry_text, new_key

    key = sys.stdin.readline().strip() if arguments.stdin else new_key()
    check_own_key(key)
    print(entry_text(arguments.name, key))  # noqa: T201
    if not arguments.stdin:
        print(f"the key, which is shown this once: {key}", file=sys.stderr)  # noqa: T201
    return 0

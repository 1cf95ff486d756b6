"""Shared by all subcommands: a parser with suggestions, exit codes, tables and sizes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO, TypeAlias

from ovserve.server.environment import nearest

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
STATES = {"AVAILABLE": "\x1b[32m", "LOADING": "\x1b[33m", "UNLOADING": "\x1b[33m", "FAILED": "\x1b[31m"}
CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")  # argparse's own words
EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's own


class Parser(argparse.ArgumentParser):
    """argparse with a suggestion: an unknown flag, command or value names the nearest known one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown flags in the subcommand: the main parser does not know its flags."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        if unknown:
            visible = [a for a in self._actions if a.help != argparse.SUPPRESS]
            message += nearest(unknown, [name for action in visible for name in action.option_strings])
        if choice := CHOICE.search(message):
            message += nearest(choice[1], re.findall(r"[\w.-]+", choice[2]))
        super().error(message)


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns as wide as needed; the last one is not padded. On a terminal, the header is bold and
    states have their colours."""
    every = [header, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(header) - 1)]
    coloured = colours(sys.stdout)
    lines = []
    for row in every:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]]
        if coloured:
            cells = [
                _coloured(cell, BOLD if row is header else STATES.get(cell.strip(), "")) for cell in cells
            ]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _coloured(cell: str, code: str) -> str:
    return f"{code}{cell}{PLAIN}" if code else cell


def size(count: float) -> str:
    """Format bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def colours(out: TextIO) -> bool:
    """Return whether colours may be written: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

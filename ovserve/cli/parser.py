"""Shared by all subcommands: a parser with suggestions, exit codes, tables and sizes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO, TypeAlias, TypeVar

from ovserve.errors import InvalidArgument
from ovserve.pull.encoder_graph import OPTIONS as ENCODER_OPTIONS
from ovserve.pull.graph_text import OPTIONS as TEXT_OPTIONS
from ovserve.pull.graph_text import GraphOption, OptionValue
from ovserve.server.environment import nearest
from ovserve.serving.config.models import FLAGS

V = TypeVar("V")

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
STATES = {"AVAILABLE": "\x1b[32m", "LOADING": "\x1b[33m", "UNLOADING": "\x1b[33m", "UNLOADED": "\x1b[36m",
          "FAILED": "\x1b[31m"}  # fmt: skip
CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")  # argparse's own words
EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's own


class Parser(argparse.ArgumentParser):
    """argparse with a suggestion: an unknown flag, command or value names the nearest known one. A part of a
    flag is none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

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


class OvmsFlag(argparse.Action):
    """A flag of OVMS without an option here: a notice, or an error that says what to do instead."""

    def __init__(
        self, *args: Any, refused: Mapping[str, str], without_effect: Mapping[str, str], **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self._refused, self._without_effect = refused, without_effect

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        name = str(option_string).removeprefix("--")
        if name in self._refused:
            parser.error(f"{option_string} is OVMS's and not an option here: {self._refused[name]}")
        notice = f"{option_string} has no effect: {self._without_effect[name]}"
        namespace.notices = [*namespace.notices, notice]


def add_ovms_flags(
    parser: argparse.ArgumentParser, refused: Mapping[str, str], without_effect: Mapping[str, str]
) -> None:
    parser.set_defaults(notices=[])
    tables = {"refused": refused, "without_effect": without_effect}
    hidden: dict[str, Any] = {"dest": argparse.SUPPRESS, "help": argparse.SUPPRESS, **tables}
    for name in (*without_effect, *refused):
        parser.add_argument(f"--{name}", nargs="?", action=OvmsFlag, **hidden)


def reader(parse: Callable[[str], V]) -> Callable[[str], V]:
    """Return the function as a type of argparse, which shows the error's message."""

    def read(text: str) -> V:
        try:
            return parse(text)
        except InvalidArgument as exc:
            raise argparse.ArgumentTypeError(str(exc)) from None

    return read


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
            codes = [BOLD if row is header else STATES.get(cell.strip(), "") for cell in cells]
            cells = [
                f"{code}{cell}{PLAIN}" if code else cell for code, cell in zip(codes, cells, strict=True)
            ]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def size(count: float) -> str:
    """Format bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def spelling(value: OptionValue) -> str:
    """Return the value of an option as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def colours(out: TextIO) -> bool:
    """Return whether colours may be written: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# The flags that describe a graph: of `ovserve pull`, and of `ovserve serve` for a model without a graph.
#
# `ovserve serve` also has those of a plain model.


OPTIONS = (*TEXT_OPTIONS, *ENCODER_OPTIONS)

PREFIX = "graph_option_"  # of the attributes: `serve` has options of its own


def add_graph_options(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for option in OPTIONS:
        _add(group, option)


def add_plain_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "Options of a plain model, with --target_device and --plugin_config (docs/plain-models.md)"
    )
    for name, text in FLAGS.items():
        group.add_argument(
            f"--{name}", dest=PREFIX + name, default=argparse.SUPPRESS, metavar="VALUE", help=text
        )


def plain_options(arguments: argparse.Namespace) -> dict[str, OptionValue]:
    """Return those that were given, by name."""
    values = vars(arguments)
    return {name: values[PREFIX + name] for name in FLAGS if PREFIX + name in values}


def graph_options(arguments: argparse.Namespace) -> dict[str, OptionValue]:
    """Return those that were given, by name."""
    values = vars(arguments)
    return {o.name: values[PREFIX + o.name] for o in OPTIONS if PREFIX + o.name in values}


def _add(group: argparse._ArgumentGroup, option: GraphOption) -> None:
    note = "" if option.default in (None, "") else f" (default: {spelling(option.default)})"
    place = f"; {option.property} in plugin_config" if option.property else ""
    words = {int: "COUNT", bool: "true|false", str: "TEXT", float: "NUMBER"}
    group.add_argument(
        f"--{option.name}",
        dest=PREFIX + option.name,
        type=reader(option.parse),
        default=argparse.SUPPRESS,
        metavar="|".join(option.choices) or words[option.kind],
        help=option.help + place + note,
    )

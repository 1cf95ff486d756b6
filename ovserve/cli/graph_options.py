"""The flags that describe a graph: of `ovserve pull`, and of `ovserve serve` for a model without a graph.

`ovserve serve` also has those of a plain model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ovserve.errors import InvalidArgument
from ovserve.pull.encoder_graph import OPTIONS as ENCODER_OPTIONS
from ovserve.pull.graph_text import OPTIONS as TEXT_OPTIONS
from ovserve.pull.graph_text import GraphOption, OptionValue
from ovserve.serving.config.models import FLAGS

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
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    note = "" if default in (None, "") else f" (default: {default})"
    place = f"; {option.property} in plugin_config" if option.property else ""
    words = {int: "COUNT", bool: "true|false", str: "TEXT", float: "NUMBER"}
    group.add_argument(
        f"--{option.name}",
        dest=PREFIX + option.name,
        type=_reader(option),
        default=argparse.SUPPRESS,
        metavar="|".join(option.choices) or words[option.kind],
        help=option.help + place + note,
    )


def _reader(option: GraphOption) -> Callable[[str], OptionValue]:
    def read(text: str) -> OptionValue:
        try:
            return option.parse(text)
        except InvalidArgument as exc:
            raise argparse.ArgumentTypeError(str(exc)) from None

    return read

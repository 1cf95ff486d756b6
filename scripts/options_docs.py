"""`make docs`: writes the second half of docs/cli.md from the fields of Settings and the parser of `ovserve
pull`.

tests/test_options.py checks it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import Field
from typing import Any

from ovserve.cli.commands import build_parser
from ovserve.cli.parser import PREFIX
from ovserve.cli.serve import CONFIG_FLAGS
from ovserve.pull.graph_text import OPTIONS as GRAPH_FIELDS
from ovserve.server.environment import variables
from ovserve.server.settings import GROUPS, OPTIONS
from ovserve.serving.config.models import FLAGS as PLAIN_FLAGS
from scripts.nodes_docs import MARK
from tests.conftest import ROOT

FILE = ROOT / "docs/cli.md"

INTRODUCTION = """
## Options of `ovserve serve`

Every option is also an environment variable: `OVSERVE_REST_PORT=9000` means `--rest_port 9000`. A flag wins over its
variable. An unknown flag is an error that suggests the nearest one; an unknown `OVSERVE_` variable is a warning. A flag
that is `true` or `false` needs no value for `true`.
"""

GRAPH = """
### A model without a graph

For a graph made in memory, `ovserve serve SOURCE` takes the options of [`ovserve pull`](#options-of-ovserve-pull) from
`--normalize` on, and `--task`. A graph.pbtxt next to the model is then not used, which is logged.

OVMS's commands about a configuration file end without serving:
"""

PLAIN = """
### A plain model

For one plain model, `ovserve serve` takes `--target_device`, `--plugin_config` and the keys of an entry of config.json,
which [plain-models.md](plain-models.md#plain-models) explains. `--add_to_config` writes them into the entry:
"""

PULL = """
## Options of `ovserve pull`

See [pull.md](pull.md).
"""

TABLE = "|option|default, choices|meaning|\n|---|---|---|"

GRAPH_OPTIONS = """
For [fields](graphs.md#llmcalculatoroptions) of a graph of text, described by `ovserve pull --help`: """

OVMS = """
Flags of OVMS that are not options here are ignored with a notice or rejected, and the message says why;
[migrate.md](migrate.md#from-ovms) lists them.
"""


def text() -> str:
    lines = [FILE.read_text().partition(MARK)[0] + MARK + INTRODUCTION]
    used = {o.metadata["group"] for o in OPTIONS}
    for group in (g for g in GROUPS if g in used):
        lines += [f"### {group}", "", TABLE]
        lines += [_row(o) for o in OPTIONS if o.metadata["group"] == group]
        lines.append("")
    lines.append(GRAPH.strip() + "\n")
    lines += [f"- `--{name}`: {what}" for name, what in CONFIG_FLAGS.items()]
    lines += ["", PLAIN.strip() + "\n", ", ".join(f"`--{name}`" for name in PLAIN_FLAGS) + "."]
    lines += ["", PULL.strip() + "\n", TABLE.replace("default, choices", "choices"), *_pull()]
    lines += ["", OVMS.strip() + "\n"]
    return "\n".join(lines).rstrip() + "\n"


def _pull() -> Iterator[str]:
    """Return a row for each option that `ovserve pull --help` lists, and the names of those of a graph."""
    of_graph = []
    (parser,) = (a.choices["pull"] for a in build_parser()._actions if isinstance(a.choices, dict))
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS and action.dest != "help":
            values = [f"`{choice}`" for choice in action.choices or ()]
            if not values and "|" in (action.metavar or ""):
                values = [f"`{value}`" for value in str(action.metavar).split("|")]
            kind = ", ".join(values)
            if action.dest in {PREFIX + option.name for option in GRAPH_FIELDS}:
                of_graph.append(f"`{action.option_strings[0]}`")
                continue
            yield f"|{', '.join(f'`{name}`' for name in action.option_strings)}|{kind}|{action.help}|"
    yield GRAPH_OPTIONS + ", ".join(of_graph) + "."


def _row(o: Field[Any]) -> str:
    names = [f"`--{name}`" for name in (o.name, *o.metadata["aliases"]) if o.metadata["flag"]]
    names += [f"`{name}`" for name in variables(o)[0 if not names else 1 :]]
    kind = ", ".join(f"`{c}`" for c in o.metadata["choices"])
    default = f"{o.default:g}" if isinstance(o.default, float) else str(o.default)
    if isinstance(o.default, bool):
        default = default.lower()
    if kind:
        kind = kind.replace(f"`{default}`", f"**`{default}`**")
    return f"|{', '.join(names)}|{kind or default}|{o.metadata['help'].replace('|', chr(92) + '|')}|"


if __name__ == "__main__":
    FILE.write_text(text())

"""`make docs`: writes docs/options.md from the fields of Settings; tests/test_options.py checks it."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from ovserve.server.ovms_flags import REFUSED, WITHOUT_EFFECT
from ovserve.server.settings import GROUPS, OPTIONS, variables
from tests.conftest import ROOT

FILE = ROOT / "docs/options.md"

INTRODUCTION = """# Options of `ovserve serve`

Written by `make docs` from `ovserve/server/settings.py`; do not edit. `ovserve serve --help` says the same.

Every option is also an environment variable, `OVSERVE_` and the name in capitals: `OVSERVE_REST_PORT=9000` is
`--rest_port 9000`. A flag wins over its variable, and that over the default. An unknown flag is an error that
suggests the nearest one, an unknown `OVSERVE_` variable a warning. A flag of type `bool` may stand alone for
`true`.
"""

OVMS = """
## Flags of OVMS that are no options

Those in the first table are accepted with a warning, so that a command line of OVMS can be used as it is, also
without the word `serve`. Those in the second ask for something that would not happen, and are refused.
"""


def text() -> str:
    lines = [INTRODUCTION]
    used = {o.metadata["group"] for o in OPTIONS}
    for group in (g for g in GROUPS if g in used):
        lines += [f"## {group}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(o) for o in OPTIONS if o.metadata["group"] == group]
        lines.append("")
    lines.append(OVMS.strip() + "\n")
    for header, table in (("accepted, no effect", WITHOUT_EFFECT), ("refused", REFUSED)):
        lines += [f"| {header} | because |", "|---|---|"]
        lines += [f"| `--{name}` | {why} |" for name, why in table.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(o: Field[Any]) -> str:
    names = [f"`--{name}`" for name in (o.name, *o.metadata["aliases"]) if o.metadata["flag"]]
    names += [f"`{name}`" for name in variables(o)[0 if not names else 1 :]]
    kind = " or ".join(f"`{c}`" for c in o.metadata["choices"]) or type(o.default).__name__
    default = f"{o.default:g}" if isinstance(o.default, float) else str(o.default)
    if isinstance(o.default, bool):
        default = default.lower()
    return f"| {', '.join(names)} | {kind} | {default} | {o.metadata['help']} |"


if __name__ == "__main__":
    FILE.write_text(text())

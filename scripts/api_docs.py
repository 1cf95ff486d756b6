"""`make docs`: writes docs/api.md from the operations the server itself uses; tests/test_api_docs.py checks it.

The table of parameters is `ovserve.api.openai.describe.parameters`, which GET capabilities also serves, narrowed per model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ovserve.api.openai.describe.operation import Operation
from ovserve.api.openai.describe.parameters import Parameter, parameters
from ovserve.http.app import build_app
from ovserve.http.openapi import OPERATIONS, paths_of
from ovserve.http.routes.describe import routes_of
from ovserve.http.transport.limits import RestLimits
from ovserve.serving.manager import Manager
from tests.conftest import ROOT

FILE = ROOT / "docs/api.md"

INTRODUCTION = """# API

Written by `make docs` from the tables the server itself uses; do not edit. A running server says the same in
two other forms: `GET /v3/capabilities` narrows the rows to each model (its limits, its own defaults, what its
chat template reads), and `GET /openapi.json` is the OpenAPI 3.1 document.

How a parameter is treated:

| word | meaning |
|---|---|
| honoured | It has its effect. A wrong type or a value out of range is a 400 whose `param` names the field and whose message shows the value. |
| reported | It is checked as if it were honoured and has no effect. The header `x-ovserve-ignored-params` lists it. |
| refused | A 400 with code `unsupported_parameter`, unless the value is null or one of those given as accepted. |

Any other field is unknown: it is not an error, and `x-ovserve-ignored-params` lists it. `null` is as good as
absent for every optional parameter, `5.0` as good as `5` where an integer belongs. A key that occurs twice in one
object is a 400, in any depth. Ranges are
inclusive unless written with `<`. A default comes from the request, else from the model's
`generation_config.json`, else from here.

What of a prompt was in the prefix cache and so was not computed is `prompt_tokens_details.cached_tokens` in the
usage of chat and completions, `input_tokens_details.cached_tokens` in that of a response, and
`cache_read_input_tokens` in that of a message. The first two are part of the prompt's tokens; the last one is
not part of `input_tokens`, as Anthropic counts: the prompt is the sum. With `n`, it is what the first choice
found. Where it is not known ([metrics.md](metrics.md) says where) the fields are left out, but for that of a
response, which is 0 because the clients' type wants a number.

## Paths
"""


def text() -> str:
    app = build_app(Manager(None, ready_timeout=1), RestLimits(1 << 20, 1))  # type: ignore[arg-type]
    served = paths_of(routes_of(app), OPERATIONS)
    lines = [INTRODUCTION, "| method | path | also at | what it does |", "|---|---|---|---|"]
    for operation, (path, *also) in served.items():
        elsewhere = ", ".join(f"`{one}`" for one in also)
        lines.append(f"| {operation.method} | `{path}` | {elsewhere} | {operation.summary} |")
    lines += ["", "Every GET also answers HEAD."]
    for operation in served:
        if operation.request is not None and not operation.same_as:
            lines += _section(operation)
    return "\n".join(lines) + "\n"


def _section(operation: Operation) -> Iterator[str]:
    yield f"\n## {operation.method} {operation.path}\n"
    yield operation.summary + (" Needs a model with a chat template." if operation.needs_template else "")
    if operation.example:
        yield f"\n```json\n{json.dumps(operation.example)}\n```"
    yield "\n| parameter | | type and range | default | what it does, or why not |\n|---|---|---|---|---|"
    for row in parameters(operation):
        required = ", required" if row.required else ""
        default = "" if row.default is None else f"`{json.dumps(row.default)}`"
        yield f"| `{row.name}` | {row.status}{required} | {_kind(row)} | {default} | {_cell(row.why)} |"


def _kind(row: Parameter) -> str:
    if row.status == "refused":
        accepted = ", ".join(f"`{json.dumps(v)}`" for v in row.schema.get("enum", ()))
        return f"accepted: {accepted}" if accepted else ""
    return _cell(schema_text(row.schema))


def schema_text(schema: dict[str, Any]) -> str:
    """`{"type": "number", "minimum": 0}` as "number, at least 0"."""
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(v)}`" for v in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(schema_text(one) for one in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"array of ({schema_text(schema.get('items', {}))})"
    return kind + _range(schema) + _length(schema)


def _range(schema: dict[str, Any]) -> str:
    low = f"{_number(schema['minimum'])} <= " if "minimum" in schema else ""
    low = f"{_number(schema['exclusiveMinimum'])} < " if "exclusiveMinimum" in schema else low
    high = f" <= {_number(schema['maximum'])}" if "maximum" in schema else ""
    high = f" < {_number(schema['exclusiveMaximum'])}" if "exclusiveMaximum" in schema else high
    return f", {low}x{high}" if low or high else ""


def _length(schema: dict[str, Any]) -> str:
    found = []
    for word, unit in (("Items", "elements"), ("Length", "characters"), ("Properties", "keys")):
        if f"min{word}" in schema:
            found.append(f"at least {schema[f'min{word}']} {unit}")
        if f"max{word}" in schema:
            found.append(f"at most {schema[f'max{word}']} {unit}")
    return "".join(f", {one}" for one in found)


def _number(value: float) -> str:
    for power in (31, 32, 63, 64):
        for sign, exact in (("", 2**power), ("-", -(2**power))):
            if value == exact:
                return f"{sign}2^{power}"
            if value == exact - 1:
                return f"{sign}2^{power}-1"
    return f"{value:g}"


def _cell(text_: str) -> str:
    return text_.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    Path(FILE).write_text(text())


if __name__ == "__main__":
    main()

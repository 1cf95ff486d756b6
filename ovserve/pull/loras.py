"""`ovserve pull --source_loras`: LoRA adapters of an image model, with OVMS's spelling.

    --source_loras 'ink=me/ink-lora,oil=me/paint@oil.safetensors:0.8,mix=@ink:0.5+@oil'

An adapter is ALIAS=SOURCE[@FILE][:ALPHA]. SOURCE is an id on the hub, whose file goes to loras/ALIAS of the
model, or a path, which is used where it is. ALIAS=@ALIAS[:ALPHA]+@ALIAS[:ALPHA] is a composite of others.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ovserve.errors import InvalidArgument, LoadError
from ovserve.pull import hub

FLAG = "--source_loras"
FOLDER, FORM = "loras", ".safetensors"
ALIAS = re.compile(r"[\w.-]{1,100}")
_ALPHA = re.compile(r"(.*):(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Adapter:
    alias: str
    source: str
    file: str = ""  # of the repository or directory; empty: its only one
    alpha: str = ""  # empty: 1


@dataclass(frozen=True)
class Composite:
    alias: str
    components: tuple[tuple[str, str], ...]  # alias and alpha


def parse_loras(text: str) -> tuple[tuple[Adapter, ...], tuple[Composite, ...]]:
    """Raises InvalidArgument naming what is wrong."""
    adapters: list[Adapter] = []
    composites: list[Composite] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        alias, equals, source = entry.partition("=")
        if not equals or not source or not ALIAS.fullmatch(alias):
            raise InvalidArgument(f"{FLAG}: expected ALIAS=SOURCE, got {entry!r}")
        if alias in {a.alias for a in adapters} | {c.alias for c in composites}:
            raise InvalidArgument(f"{FLAG}: {alias!r} is there twice")
        if source.startswith("@"):
            composites.append(Composite(alias, tuple(_component(c, entry) for c in source.split("+"))))
            continue
        source, alpha = _weighted(source)
        source, _, file = source.partition("@")
        adapters.append(Adapter(alias, source, file, alpha))
    known_aliases = {adapter.alias for adapter in adapters}
    for composite in composites:
        for name, _ in composite.components:
            if name not in known_aliases:
                raise InvalidArgument(f"{FLAG}: {composite.alias} names {name!r}, which is not an adapter")
    return tuple(adapters), tuple(composites)


def _component(text: str, entry: str) -> tuple[str, str]:
    name, alpha = _weighted(text.strip())
    if not name.startswith("@"):
        raise InvalidArgument(f"{FLAG}: a composite is @ALIAS:ALPHA+@ALIAS:ALPHA, got {entry!r}")
    return name[1:], alpha


def _weighted(text: str) -> tuple[str, str]:
    match = _ALPHA.fullmatch(text)
    if match is None:
        return text, ""
    if not math.isfinite(float(match[2])):
        raise InvalidArgument(f"{FLAG}: expected a weight, got {match[2]!r}")
    return match[1], match[2]


def fetch_loras(
    adapters: Sequence[Adapter], directory: Path, *, again: bool, say: Callable[[str], None]
) -> dict[str, str]:
    """Return the path of each adapter for a graph in `directory`. Raises as the hub does, or LoadError."""
    return {adapter.alias: _fetch(adapter, directory, again=again, say=say) for adapter in adapters}


def _fetch(adapter: Adapter, directory: Path, *, again: bool, say: Callable[[str], None]) -> str:
    local = Path(os.path.expanduser(adapter.source))
    if not local.exists():
        place = Path(FOLDER) / adapter.alias
        path = hub.fetch_file(adapter.source, adapter.file, FORM, directory / place, again=again, say=say)
        return f"./{path.relative_to(directory)}"
    if local.is_dir():
        files = [local / adapter.file] if adapter.file else sorted(local.glob(f"*{FORM}"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise LoadError(f"name one of its {FORM} files by @FILE: {names}", file=str(local))
        (local,) = files
    if not local.is_file():
        raise LoadError("does not exist", file=str(local))
    return str(local.absolute())


def lora_fields(
    paths: dict[str, str], adapters: Sequence[Adapter], composites: Sequence[Composite]
) -> list[str]:
    lines = []
    for adapter in adapters:
        alpha = f" alpha: {adapter.alpha}" if adapter.alpha else ""
        path = json.dumps(paths[adapter.alias])
        lines.append(f"lora_adapters {{ alias: {json.dumps(adapter.alias)} path: {path}{alpha} }}")
    for composite in composites:
        parts = " ".join(
            f"components {{ adapter_alias: {json.dumps(name)}{f' alpha: {alpha}' if alpha else ''} }}"
            for name, alpha in composite.components
        )
        lines.append(f"composite_lora_adapters {{ alias: {json.dumps(composite.alias)} {parts} }}")
    return lines

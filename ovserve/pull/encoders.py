"""Encoders by `ovserve pull`: a package, a repository on the hub or a directory, converted where needed.

A model in safetensors form becomes OpenVINO IR here, without torch: its directory then has openvino_model.xml
and its tokenizer.json, which is all that the server reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import MODEL, ONNX, missing_files
from ovserve.kinds.images.spec import INDEX
from ovserve.pull import kokoro, packaged, record, whisper
from ovserve.pull.convert import Converter
from ovserve.pull.encoder_graph import TEXT2SPEECH
from ovserve.pull.hub import Hub
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

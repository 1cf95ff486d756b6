"""Choose the files of a repository on the hub that make a model the engine loads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from ovserve.engine.model.files import LANGUAGE_MODELS
from ovserve.engine.model.gguf import PART_NAME
from ovserve.errors import LoadError, NotFound
from ovserve.kinds.images.files import INDEX, MODEL
from ovserve.kinds.speech.files import ENCODER as SPEECH_ENCODER
from ovserve.pull.record import digest

KEPT = (
    "openvino_*",
    "*.json",
    "*.jinja",
    "*.txt",
    "additional_chat_templates/*",
    "voices/*",
    "data/*",
    "LICENSE*",
)


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub. `sha` is git's hash of a blob, or with `large` a sha256."""

    name: str
    size: int  # bytes
    sha: str
    large: bool

    def is_at(self, path: Path) -> bool:
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return self.sha == (digest(path) if self.large else _git_digest(path))


def choose(
    repo: str, files: Sequence[RemoteFile], gguf: str = "", *, encoder: bool = False
) -> list[RemoteFile]:
    """Choose the files of one form: OpenVINO IR, one .gguf model, or the safetensors of an `encoder`.

    Raises NotFound or LoadError.
    """
    for file in files:
        if PurePosixPath(file.name).is_absolute() or ".." in PurePosixPath(file.name).parts:
            raise LoadError(f"{repo} names a file outside of its folder: {file.name!r}")
    if any(f.name == INDEX for f in files):
        return _pipeline(repo, files)
    quantised = _gguf_models(files)
    names = ", ".join(quantised) or "none"
    if gguf:
        if gguf in quantised:
            return quantised[gguf]
        raise NotFound(f"{repo} has no file {gguf}; its .gguf files: {names}")
    if any(f.name in (*LANGUAGE_MODELS, SPEECH_ENCODER) for f in files):
        return [f for f in files if any(fnmatch(f.name, pattern) for pattern in KEPT)]
    if encoder:
        return _encoder(repo, files)
    if len(quantised) == 1:
        return next(iter(quantised.values()))
    if quantised:
        raise LoadError(f"{repo} has several .gguf files; choose one with --gguf_filename: {names}")
    raise LoadError(
        f"{repo} has no model in OpenVINO's form (openvino_model.xml) and no .gguf file. Look for one under "
        f"OpenVINO/ on the hub, or export it: optimum-cli export openvino -m {repo} DIRECTORY"
    )


def _gguf_models(files: Sequence[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """Return the files of each .gguf model by the name of the first: large ones are split."""
    models: dict[str, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(".gguf"):
            models.setdefault(PART_NAME.sub(r"-00001-of-\2.gguf", file.name), []).append(file)
    return models


def _pipeline(repo: str, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Choose the files of an image generation pipeline, whose networks have a folder each."""
    if not any(f.name.endswith(f"/{MODEL}") for f in files):
        raise LoadError(
            f"{repo} is not in OpenVINO's form ({MODEL} in its folders). Look for one under OpenVINO/ on the "
            f"hub, or export it: optimum-cli export openvino -m {repo} DIRECTORY"
        )
    patterns = (*KEPT, "*/openvino_*")
    return [f for f in files if any(fnmatch(f.name, pattern) for pattern in patterns)]


def _encoder(repo: str, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    weights = next((w for w in ("model.safetensors", "model.bin") if any(f.name == w for f in files)), None)
    if weights is None:
        raise LoadError(f"{repo} has neither openvino_model.xml nor model.safetensors")
    patterns = (weights, "*.json", "LICENSE*")
    folders = ("onnx/", "openvino/")  # other forms of the same model
    return [f for f in files if any(fnmatch(f.name, p) for p in patterns) and not f.name.startswith(folders)]


def _git_digest(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

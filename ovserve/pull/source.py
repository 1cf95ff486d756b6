"""SOURCE of `ovserve pull`: a short name, an id on the Hugging Face hub, a directory or a .gguf file.

A short name wins over a directory of that name, which is then written as ./NAME.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from ovserve.engine.model.files import LANGUAGE_MODELS, cloud_fault, gguf_models, model_in
from ovserve.errors import InvalidArgument, LoadError, NotFound
from ovserve.pull import kokoro, packaged, whisper
from ovserve.pull.convert import checked
from ovserve.pull.hub import Hub
from ovserve.pull.packaged import ENCODERS, MODELS, NO_SAMPLING, PLAIN_MODELS, PackagedModel
from ovserve.pull.progress import Say as Say
from ovserve.pull.progress import require
from ovserve.serving.fingerprint import Fingerprints

OTHER_NAMES = (*ENCODERS, *PLAIN_MODELS, kokoro.NAME, whisper.NAME)  # of what is not a language model
SHORT_NAMES = (*MODELS, *OTHER_NAMES)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Source(Protocol):
    name: str  # name of the folder in the repository
    in_place: bool  # the user's own files, which are not changed
    sampling: Mapping[str, float]  # defaults of the model's authors that its file does not hold

    @property
    def is_gguf(self) -> bool:
        """Return whether it is a .gguf file; known once it is identified."""

    def identify(self, old: str) -> str:
        """Return its exact identity before `fetch`: a sha256, a commit. `old` was fetched last."""

    def fetch(self, directory: Path, *, again: bool, say: Say, changed: Collection[str] = ()) -> Path:
        """Return the .gguf file or the directory to load; downloads go into `directory`, `again` even if
        present. `changed` names files that were changed here since, and are kept.

        Raises LoadError, Unavailable, NotFound, PermissionDenied or ResourceExhausted.
        """


class Packaged:
    in_place = False

    def __init__(self, name: str, model: PackagedModel) -> None:
        self.name, self._model = name, model
        self.sampling = model.sampling

    @property
    def is_gguf(self) -> bool:
        return True

    def identify(self, old: str) -> str:
        return self._model.sha256

    def fetch(self, directory: Path, *, again: bool, say: Say, changed: Collection[str] = ()) -> Path:
        target = directory / self._model.file
        if not again and target.is_file():
            if packaged.is_right(target, self._model):
                say(f"{target} is there and its hash is right")
                return target
            say(f"{target} differs from the pinned file; fetching it again")
        require(directory, packaged.still_to_fetch(self._model, directory), f"fetching {self.name}")
        return packaged.fetch(self._model, directory, say)


class Local:
    """A model on this machine, used in place."""

    in_place = True
    sampling = NO_SAMPLING

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))  # links stay links, because their target may change
        self.name = self._path.stem if self.is_gguf else self._path.name

    @property
    def is_gguf(self) -> bool:
        return self._path.is_file()

    def identify(self, old: str) -> str:
        if not self.is_gguf:
            return str(self._path)
        files = Fingerprints()  # samples of it: all of a large model is read for half a minute
        return " ".join(files.file(str(part)) for part in checked(self._path).gguf.files)

    def fetch(self, directory: Path, *, again: bool, say: Say, changed: Collection[str] = ()) -> Path:
        return self._path


def _model_in(path: Path) -> Path:
    """Return the path itself, or the only .gguf file of a directory without OpenVINO IR. Raises LoadError."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise LoadError("a model is a directory or a .gguf file", file=str(path))
        return path
    model = model_in(path)
    if model == path and not any((path / name).is_file() for name in LANGUAGE_MODELS):
        files = gguf_models(path)
        names = (
            f"several .gguf files, name one: {', '.join(f.name for f in files)}" if files else "no .gguf file"
        )
        raise LoadError(
            f"has no {LANGUAGE_MODELS[0]}, and {names}. optimum-cli export openvino -m {path} DIRECTORY "
            "exports a PyTorch model to OpenVINO IR",
            file=str(path),
        )
    return model


def find(text: str, models: Mapping[str, PackagedModel], *, revision: str = "", gguf: str = "") -> Source:
    """Return the source. `revision` and `gguf`, a file name, are for the hub.

    Raises NotFound with the nearest short name.
    """
    if not text:
        raise InvalidArgument("which model? Give a short name, an id on the hub, a directory or a .gguf file")
    if fault := cloud_fault(text):
        raise InvalidArgument(fault)
    path = Path(os.path.expanduser(text))
    local = text not in models and path.exists()
    if not local and path.is_symlink():
        raise NotFound(f"{text} is a link to {path.readlink()}, which cannot be reached")
    if text not in models and not local and HUB_ID.fullmatch(text):
        return Hub(text, revision, gguf)
    for flag, value in (("revision", revision), ("gguf_filename", gguf)):
        if value:
            raise InvalidArgument(f"--{flag} is for models on the hub, and {text!r} is not one")
    if text in models:
        return Packaged(text, models[text])
    if local:
        return Local(_model_in(path))
    if text.startswith((".", "~", "/")) or text.endswith(".gguf"):
        raise NotFound(f"{text} does not exist")
    names = (*models, *OTHER_NAMES)
    near = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise NotFound(
        f"{text!r} is not a packaged model{hint}; known: {', '.join(names)}. An id on the hub is OWNER/NAME"
    )

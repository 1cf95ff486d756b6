"""A comparable digest of a servable's files, which decides whether it must be loaded again.

Content decides, never a time stamp: `touch`, a copy over itself or a new checkout is not a change. Reading
is avoided by remembering, per file, the size, times and inode of its digest. In a file above `MAX_HASHED`
bytes only evenly spaced samples are read (its head, its tail and `SAMPLES` blocks between); otherwise a
model of 30 GB would be read from disk at every copy. A model that was quantised or trained anew differs in
every block, but a manual edit of a few bytes in the middle of a huge file is not detected.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ovserve.graph.registry import author_files, modules
from ovserve.serving.settings import ServableSpec

MAX_HASHED = 64 << 20
SAMPLES, BLOCK = 64, 64 << 10
MAX_FILES = 10_000

# The files of a model in a directory that may hold much else: its own graph, logs, a compile cache.
MODEL_SUFFIXES = frozenset((
    ".xml", ".bin", ".gguf", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".onnx", ".safetensors",
    ".npy", ".pdmodel", ".pdiparams", ".pb", ".tflite", ".index",
))  # fmt: skip


class Fingerprint(msgspec.Struct, frozen=True):
    """Digests: `graph` of graph.pbtxt, the authors' files and the subconfig; `models` one per model path.

    An absent file has a digest too, so its appearing is a change.
    """

    graph: str
    models: tuple[tuple[str, str], ...] = ()

    def covers(self, other: Fingerprint) -> bool:
        """Return whether the content is the same for all models of `other`, which may cover fewer."""
        return self.graph == other.graph and set(other.models) <= set(self.models)


class Fingerprints:
    """Digests of files, each read again only when its size, times or inode changed. One thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int, int], str]] = {}

    def of(self, spec: ServableSpec, model_paths: Iterable[str]) -> Fingerprint:
        models = tuple((path, self.model(path)) for path in sorted(set(model_paths)))
        if spec.text:
            return Fingerprint(_combined([spec.text]), models)
        files = [spec.graph, *([spec.subconfig] if spec.subconfig else [])]
        own = [
            f"{os.path.relpath(path, spec.base)} {self.file(str(path))}"
            for path in _files(author_files, spec.base)
        ]
        return Fingerprint(_combined([*(self.file(str(path)) for path in files), *own]), models)

    def model(self, path: str) -> str:
        """Return the digest of a model file, or of the files of a model directory by their relative names.

        A handler of a Python node imports the modules next to it, so they count as well.
        """
        if path.endswith(".py"):
            beside = _files(modules, Path(path).parent)[:MAX_FILES]
            return _combined([self.file(path), *(f"{name} {self.file(str(name))}" for name in beside)])
        if not os.path.isdir(path):
            return self.file(path)
        return _combined([f"{os.path.relpath(f, path)} {self.file(f)}" for f in _model_files(path)])

    def file(self, path: str) -> str:
        """Return the digest of the content; "absent" or "unreadable" if there is none."""
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                identity = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
                cached = self._known.get(path)
                if cached is None or cached[0] != identity:
                    cached = self._known[path] = (identity, _digest(file.fileno(), stat.st_size))
                return cached[1]
        except (FileNotFoundError, NotADirectoryError):
            return "absent"
        except (OSError, ValueError) as error:  # ValueError: no path, because of a null character
            return f"unreadable: {error}"


def _files(list_files: Callable[[Path], list[Path]], directory: Path) -> list[Path]:
    """Return the files; none of a directory that does not exist or cannot be read."""
    try:
        return list_files(directory)
    except (OSError, ValueError):
        return []


def _model_files(directory: str) -> list[str]:
    files: list[str] = []
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        suffixes = ((n, os.path.splitext(n)[1]) for n in names)
        # .data-: weights of a TensorFlow SavedModel
        files += [
            os.path.join(place, n) for n, s in suffixes if s in MODEL_SUFFIXES or s.startswith(".data-")
        ]
        if len(files) > MAX_FILES:  # not a model; the engine reports an error for such a path
            break
    return sorted(files[:MAX_FILES])


def _digest(descriptor: int, size: int) -> str:
    if size <= MAX_HASHED:
        blocks = [(0, size)]
    else:
        blocks = [(i * (size - BLOCK) // (SAMPLES + 1), BLOCK) for i in range(SAMPLES + 2)]
    sha = hashlib.sha256(str(size).encode())
    for start, length in blocks:
        os.lseek(descriptor, start, os.SEEK_SET)
        remaining = length
        while remaining and (part := os.read(descriptor, min(remaining, 1 << 20))):
            sha.update(part)
            remaining -= len(part)
    return sha.hexdigest()


def _combined(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

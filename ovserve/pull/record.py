"""pull.json, what pull knows of a directory that it has filled; read and written by `run.py`.

It pins what was fetched, and tells a graph.pbtxt that was written here from one that somebody has changed
since.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from ovserve.errors import LoadError

FILE = "pull.json"


class Record(msgspec.Struct, frozen=True):
    source: str = ""  # as it was given
    identity: str = ""  # sha256 of a file, commit on the hub, or path of a directory
    converted: bool = False  # from a .gguf file to OpenVINO's form
    weight_format: str = ""  # which it was converted to; empty: as it was quantised
    auto: bool = False  # that was chosen here, by the processor
    graph: str = ""  # sha256 of graph.pbtxt as it was written


def read(directory: Path) -> Record:
    """An empty one where there is none. Raises LoadError."""
    file = directory / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record()
    except msgspec.MsgspecError as error:
        raise LoadError(f"{error}; remove it to pull anew", file=str(file)) from error


def write(directory: Path, record: Record) -> None:
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    (directory / FILE).write_bytes(text + b"\n")


def digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()

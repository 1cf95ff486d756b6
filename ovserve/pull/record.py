"""pull.json: what pull records about a directory that it has filled.

It pins what was fetched, and distinguishes a graph.pbtxt written by pull from one that was changed
since.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from ovserve.errors import LoadError

FILE = "pull.json"
# 1: query, key and value of a layer are one matrix product; of unpacked weights, PACKED is there.
FORM_VERSION = 1
# 0: by the library, without rope factors; 3: zero points in f16; 4: fewer ends. All are converted again.
CONVERSION_VERSION = 5
SOURCE = "source"  # weights as they are
COMPRESSED = ("int8", "int4")  # weights, by nncf


class Record(msgspec.Struct, frozen=True):
    source: str = ""  # as given
    identity: str = ""  # sha256 of a file, commit on the hub, or path of a directory
    converted: bool = False  # converted from a .gguf file to OpenVINO IR
    weight_format: str = ""  # format after conversion; empty: as quantised
    auto: bool = False  # the format was chosen by the processor
    form: int = 0  # of the network: 0 as it was read or exported, FORM as this version makes it
    graph: str = ""  # sha256 of graph.pbtxt as written
    explicit: bool = False  # the graph has five nodes in place of one
    compressed: str = ""  # one of COMPRESSED, if the weights were finer
    conversion: int = 0  # CONVERSION of the version that converted it
    exact: bool = False  # with the file's own numbers, for our kernels


def read(directory: Path) -> Record:
    """Return the record; an empty one if there is none. Raises LoadError."""
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

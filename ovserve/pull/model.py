"""Brings a model from its source to disk: fetched, and converted if requested or needed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ovserve.engine.model.gguf import GGUFError
from ovserve.errors import InvalidArgument, LoadError
from ovserve.pull import record, reencode
from ovserve.pull.convert import MAIN, convert, remove
from ovserve.pull.record import Record
from ovserve.pull.source import Say, Source

SCRATCH = ".gguf"  # folder of a file that is fetched only for conversion


@dataclass(frozen=True)
class How:
    """The command line. With `auto` it is converted to the weight format that is faster on this processor.

    The .gguf file is then kept next to the result, for a processor that needs the other format.
    """

    convert: bool = False
    weight_format: str = ""
    again: bool = False
    auto: bool = False
    only_ir: bool = False


def obtain(source: Source, name: str, directory: Path, how: How, say: Say) -> Path:
    """Return the .gguf file or directory that the graph names; recorded in `directory`.

    `name` is the name as requested. Raises what fetching and converting raise.
    """
    known = record.read(directory)
    identity = source.identify(known.identity if known.source == name else "")
    if how.convert and not source.is_gguf:
        raise InvalidArgument(f"--convert is for .gguf files, and {name} is in OpenVINO's form already")
    if (how.weight_format or how.auto) and not source.is_gguf:
        raise InvalidArgument(
            f"--weight-format is for .gguf files; {name} is served with the weights it was exported with"
        )
    if source.must_convert and not (how.convert or how.weight_format):
        say(f"{name} is converted to OpenVINO's form: {source.must_convert}")
    if source.must_convert:
        reencode.library()  # a missing package must fail now, not after the download
    only_ir = source.is_gguf and (how.convert or how.only_ir or bool(source.must_convert))
    converted = only_ir or how.auto or bool(how.weight_format)
    kept = how.auto and not only_ir
    same = (known.identity, known.weight_format) == (identity, how.weight_format)
    file: Path | None = None
    if kept or not converted:
        model = file = source.fetch(directory, again=how.again, say=say)
        _check(model)
    if kept:
        say(f"{name}: weights {'unpacked' if how.weight_format else 'packed'}, the faster form here")
    if not converted:
        if known.converted and source.is_gguf:
            say(f"{directory / MAIN}, converted before, is removed")
            remove(directory)
    elif known.converted and same and (directory / MAIN).is_file() and not how.again:
        say(f"{directory / MAIN} is there, converted from the same file")
        model = directory
    else:
        model = _convert(source, directory, how, say, file)
    directory.mkdir(parents=True, exist_ok=True)
    made = Record(name, identity, converted, how.weight_format, how.auto, known.graph)
    if made != known:
        record.write(directory, made)
    return model


def _convert(source: Source, directory: Path, how: How, say: Say, file: Path | None) -> Path:
    """Convert `file`, if it is already there. One fetched for this is removed, unless it was there before."""
    scratch = directory / SCRATCH
    if file is None:
        file = source.fetch(directory if any(directory.glob("*.gguf")) else scratch, again=how.again, say=say)
    convert(file, directory, say, how.weight_format)
    shutil.rmtree(scratch, ignore_errors=True)
    return directory


def _check(model: Path) -> None:
    """Report now what the reader would reject at every load."""
    if not model.is_file():
        return
    try:
        refused = reencode.refused(model)
    except GGUFError as error:
        raise LoadError(str(error), file=str(model)) from error
    if refused:
        raise LoadError(
            f"OpenVINO's reader rejects its {reencode.kinds(refused)} tensors; --convert writes them as Q8_0",
            file=str(model),
        )

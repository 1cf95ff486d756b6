"""Brings a model from its source to disk: fetched, and converted if requested or needed."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ovserve.engine.model.files import LANGUAGE_MODELS
from ovserve.engine.model.gguf import GGUFError
from ovserve.errors import InvalidArgument, LoadError
from ovserve.pull import record, reencode
from ovserve.pull.convert import MAIN, convert, merge_in_place, remove
from ovserve.pull.record import Record
from ovserve.pull.source import Say, Source

NETWORKS = [f"{name.removesuffix('.xml')}.{suffix}" for name in LANGUAGE_MODELS for suffix in ("xml", "bin")]
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
    merge: bool = True  # query, key and value

    @property
    def form(self) -> int:
        """Return the form of a network. Merging was not measured with AMX, where weights are unpacked."""
        return record.FORM if self.merge and not self.weight_format else 0


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
    same = (known.identity, known.weight_format) == (identity, how.weight_format) and known.form <= how.form
    there = same and any((directory / main).is_file() for main in LANGUAGE_MODELS) and not how.again
    file: Path | None = None
    form = known.form if there else 0
    if converted:
        if kept:
            file = source.fetch(directory, again=how.again, say=say)
            _check(file)
            say(f"{name}: weights {'unpacked' if how.weight_format else 'packed'}, the faster form here")
        if known.converted and there:
            say(f"{directory / MAIN} is there, converted from the same file")
        else:
            _convert(source, directory, how, say, file)
            form = how.form
        model = directory
    else:
        # The hash of a network that was merged is no longer the source's.
        model = _fetch(source, directory, how, say, known, NETWORKS if form else ())
    ours = model.is_dir() and (converted or not source.in_place)
    if ours and form < how.form and merge_in_place(model, say):
        form = how.form
    directory.mkdir(parents=True, exist_ok=True)
    made = Record(name, identity, converted, how.weight_format, how.auto, form, known.graph)
    if made != known:
        record.write(directory, made)
    return model


def _fetch(
    source: Source, directory: Path, how: How, say: Say, known: Record, changed: Collection[str]
) -> Path:
    """Fetch a model that is not converted."""
    model = source.fetch(directory, again=how.again, say=say, changed=changed)
    _check(model)
    if known.converted and source.is_gguf:
        say(f"{directory / MAIN}, converted before, is removed")
        remove(directory)
    return model


def _convert(source: Source, directory: Path, how: How, say: Say, file: Path | None) -> None:
    """Convert `file`, if it is already there. One fetched for this is removed, unless it was there before."""
    scratch = directory / SCRATCH
    if file is None:
        file = source.fetch(directory if any(directory.glob("*.gguf")) else scratch, again=how.again, say=say)
    convert(file, directory, say, how.weight_format, source.sampling, merge=bool(how.form))
    shutil.rmtree(scratch, ignore_errors=True)


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

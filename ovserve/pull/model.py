"""Brings a model from its source to disk: fetched, and converted if requested or needed."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from ovserve.engine.model.files import LANGUAGE_MODELS, read_model_files, refuse_for_library
from ovserve.engine.model.gguf_model import GGUFModel
from ovserve.errors import InvalidArgument
from ovserve.pull import record
from ovserve.pull.convert import (
    DONE,
    INT4,
    INT8,
    MAIN,
    MERGE,
    checked,
    convert,
    loaded_size,
    remove,
    rewrite_in_place,
)
from ovserve.pull.record import Record
from ovserve.pull.source import Say, Source

NETWORKS = [f"{name.removesuffix('.xml')}.{suffix}" for name in LANGUAGE_MODELS for suffix in ("xml", "bin")]
# Of a .gguf file that `auto` unpacks: with 0.5 B parameters that was measured to pay, and 3 B fill 12 GB.
MAX_UNPACKED_FILE = 512 << 20
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
    rounds: bool = False  # zero points of 4-bit weights, see `gguf_forms`
    compressed: str = ""  # one of record.COMPRESSED, or as it is in the source
    exact: bool = False  # for our kernels, see `gguf_forms`

    @property
    def form(self) -> int:
        """Return the form of a network. Unpacked weights are not merged, but the packed ones kept next to
        them are."""
        return record.FORM_VERSION if self.merge or self.weight_format else 0

    def missing(self, form: int, compressed: str) -> list[str]:
        """Return the steps that a network still needs."""
        is_wanted = {
            MERGE: form < self.form and not self.weight_format,
            INT8: self.compressed == INT8 != compressed,
            INT4: self.compressed == INT4 != compressed,
        }
        return [step for step in DONE if is_wanted[step]]


def obtain(source: Source, name: str, directory: Path, how: How, say: Say) -> Path:
    """Return the .gguf file or directory that the graph names; recorded in `directory`.

    `name` is the name as requested. Raises what fetching and converting raise.
    """
    old = record.read(directory)
    identity = source.identify(old.identity if old.source == name else "")
    if how.convert and not source.is_gguf:
        raise InvalidArgument(f"--convert is for .gguf files, and {name} is in OpenVINO's form already")
    if (how.weight_format or how.auto) and not source.is_gguf:
        raise InvalidArgument(
            f"--weight-format is for .gguf files; {name} is served with the weights it was exported with"
        )
    only_ir = source.is_gguf and (how.convert or how.only_ir)
    converted = only_ir or how.auto or bool(how.weight_format)
    if how.compressed and source.in_place and not source.is_gguf:
        raise InvalidArgument(
            f"--weight-format {how.compressed} would change your own directory {name}; copy it"
        )
    converts_automatically = how.auto and not how.convert
    file: Path | None = None
    if converts_automatically:
        file = source.fetch(directory, again=how.again, say=say)
        how = _bounded(how, checked(file), name, say)
    same = (old.identity, old.weight_format) == (identity, how.weight_format)
    same = same and old.form <= how.form and old.compressed in ("", how.compressed)
    if how.weight_format and old.form < record.FORM_VERSION:
        same = False  # written before packed weights were kept
    current = (record.CONVERSION_VERSION, how.exact)
    same = same and (not old.converted or (old.conversion, old.exact) == current)
    there = same and any((directory / main).is_file() for main in LANGUAGE_MODELS) and not how.again
    fresh = converted and not (old.converted and there)
    form, compressed = (old.form, old.compressed) if there else (0, "")
    if converted:
        if fresh:
            _convert(source, directory, how, say, file)
            form = how.form
        else:
            say(f"{directory / MAIN} is there, converted from the same file")
        model = directory
    else:
        # The hash of a network that was rewritten is no longer the source's.
        model = _fetch(source, directory, how, say, old, NETWORKS if form or compressed else ())
    ours = model.is_dir() and (converted or not source.in_place)
    missing = how.missing(form, compressed)
    if fresh:  # the conversion did the others
        missing = [step for step in missing if step in record.COMPRESSED]
    if ours and missing:
        changed = rewrite_in_place(model, missing, say)
        compressed = how.compressed if how.compressed in changed else compressed
        form = how.form if MERGE in changed else form
    directory.mkdir(parents=True, exist_ok=True)
    new = Record(
        name,
        identity,
        converted,
        how.weight_format,
        how.auto,
        form,
        old.graph,
        old.explicit,
        compressed,
        record.CONVERSION_VERSION if converted else 0,
        converted and how.exact,
    )
    if new != old:
        record.write(directory, new)
    return model


def _bounded(how: How, model: GGUFModel, name: str, say: Say) -> How:
    """Keep the weights of a large model packed: unpacked ones take three to five times its file."""
    if how.weight_format and model.gguf.size > MAX_UNPACKED_FILE:
        say(
            f"{name}: weights packed, because the file has {model.gguf.size / 1e9:.2f} GB; unpacked by "
            "--weight-format fp16, they would take "
            f"{loaded_size(model, how.weight_format, exact=how.exact) / 1e9:.1f} GB of memory"
        )
        return replace(how, weight_format="")
    say(f"{name}: weights {'unpacked' if how.weight_format else 'packed'}, the faster form here")
    return how


def _fetch(
    source: Source, directory: Path, how: How, say: Say, old: Record, changed: Collection[str]
) -> Path:
    """Fetch a model that is not converted."""
    model = source.fetch(directory, again=how.again, say=say, changed=changed)
    if model.is_file():
        refuse_for_library(str(model), read_model_files(str(model)))
    if old.converted and source.is_gguf:
        say(f"{directory / MAIN}, converted before, is removed")
        remove(directory)
    return model


def _convert(source: Source, directory: Path, how: How, say: Say, file: Path | None) -> None:
    """Convert `file`, if it is already there. One fetched for this is removed, unless it was there before."""
    scratch = directory / SCRATCH
    if file is None:
        file = source.fetch(directory if any(directory.glob("*.gguf")) else scratch, again=how.again, say=say)
    steps = [step for step in how.missing(0, how.compressed) if step not in record.COMPRESSED]
    convert(file, directory, say, how.weight_format, source.sampling, steps, how.rounds, how.exact)
    shutil.rmtree(scratch, ignore_errors=True)

"""The winner's graph: the operator's own text with other options, and the results above it as comments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ovserve.errors import Internal, InvalidArgument
from ovserve.graph.pbtxt.edit import Value, with_options, with_paths
from ovserve.kinds.plugin_config import with_properties
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.tools.tuning.choices import Options, applied, is_property
from ovserve.tools.tuning.target import Target, find

MESSAGE = LLMCalculatorOptions.DESCRIPTOR.full_name


def check_output(target: Target, output: Path, *, force: bool) -> Path:
    """Return the absolute path to write. It runs before anything is measured. Raises InvalidArgument."""
    file = output.absolute()
    if file.is_dir():
        raise InvalidArgument(f"--output: {output} is a directory; name a file in it")
    if file.exists() and not force:
        raise InvalidArgument(f"--output: {output} exists; --force would overwrite it")
    if not file.parent.is_dir():
        raise InvalidArgument(f"--output: the directory {output.parent} does not exist")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InvalidArgument(f"--output: {output} cannot be written")
    return file


def tuned_text(target: Target, options: Options, evidence: Sequence[str], output: Path) -> str:
    """Return the graph's text with `evidence` as comments above. Relative paths keep their meaning in the new
    place."""
    text = target.file.read_bytes().decode().removeprefix("\ufeff")
    fields: dict[str, Value] = {name: value for name, value in options.items() if not is_property(name)}
    if "models_path" in fields:
        fields["models_path"] = os.path.relpath(str(fields["models_path"]), target.base)
    if properties := {name: value for name, value in options.items() if is_property(name)}:
        fields["plugin_config"] = with_properties(target.options.plugin_config, properties)
    text = with_options(text, target.node.position, MESSAGE, fields)
    if output.parent != target.base:
        text = with_paths(text, _moved(target, options, output.parent))
    return "".join(f"# {line}".rstrip() + "\n" for line in evidence) + "\n" + text


def write(target: Target, options: Options, evidence: Sequence[str], output: Path) -> None:
    """Replace the file at once, then read it as the server would. Raises OSError, Internal."""
    part = output.with_name(output.name + ".part")
    part.write_text(tuned_text(target, options, evidence, output), encoding="utf-8")
    os.replace(part, output)
    name = target.node.name
    actual, expected = find(output, name).spec, applied(target.spec, options)
    if actual != expected:
        raise Internal(f"{output} was written, but means {actual} and not {expected}")


def _moved(target: Target, options: Options, directory: Path) -> dict[str, str]:
    paths = set(target.node.config.paths())
    if "models_path" in options:
        paths.add(os.path.relpath(str(options["models_path"]), target.base))
    relative = (path for path in paths if not os.path.isabs(path))
    return {path: os.path.relpath(target.base / path, directory) for path in relative}

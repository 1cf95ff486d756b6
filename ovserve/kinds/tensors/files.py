"""The files of a plain model on disk: which file of a directory is the model, and its mapping_config.json."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from ovserve.errors import LoadError

# In OVMS's order: of a directory with several the first kind counts.
SUFFIXES = (".xml", ".onnx", ".pdmodel", ".pb", ".tflite")
SAVED_MODEL = "saved_model.pb"
WEIGHTS_OF = {".pdiparams": ".pdmodel"}  # a path to weights means the model next to them
MAPPING_FILE = "mapping_config.json"


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Aliases under which clients see tensors, by the model's own names."""

    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


def is_model_file(path: Path) -> bool:
    return path.suffix in (*SUFFIXES, *WEIGHTS_OF)


def model_file(path: Path) -> Path:
    """Return what the runtime reads: a file, or the directory of a TensorFlow SavedModel.

    Raises LoadError if there is none, or several of the first kind there is.
    """
    if path.is_file():
        return path.with_suffix(WEIGHTS_OF.get(path.suffix, path.suffix))
    if not path.is_dir():
        raise LoadError(f"{path} does not exist", field="base_path")
    for suffix in SUFFIXES:
        files = sorted(f for f in path.iterdir() if f.suffix == suffix and f.is_file())
        if suffix == ".pb" and path / SAVED_MODEL in files:
            return path
        if len(files) > 1:
            names = ", ".join(f.name for f in files[:5])
            raise LoadError(f"{path} has {len(files)} models, expected one: {names}", field="base_path")
        if files:
            return files[0]
    patterns = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
    raise LoadError(f"{path} has no model file ({patterns})", field="base_path")


def unfinished(path: Path) -> str:
    """Return what a model in OpenVINO IR form lacks to be whole; "" for one that is, and for other forms."""
    try:
        file = model_file(path)
    except LoadError as error:
        return error.reason
    if file.suffix != ".xml":
        return ""
    try:
        return weights_fault(file, file.with_suffix(".bin"))
    except FileNotFoundError:
        return f"{file} has gone"


def weights_fault(xml: Path, weights: Path) -> str:
    """Return why a model of OpenVINO cannot be read: invalid XML, or weights that are absent or cut short.

    Raises OSError.
    """
    stat = xml.stat()
    root, needed, invalid = _read_xml(str(xml), stat.st_size, stat.st_mtime_ns)
    if invalid:
        return f"{xml}:{invalid}"
    if root != "net":
        return f"{xml}:1: not a model of OpenVINO: its root is <{root}>, expected <net>"
    if not needed:
        return ""
    try:
        size = weights.stat().st_size
    except FileNotFoundError:
        return f"{weights} does not exist, and {xml.name} needs {needed} bytes of it"
    return (
        ""
        if size >= needed
        else f"{weights} is truncated: it has {size} bytes, and {xml.name} needs {needed}"
    )


@lru_cache(maxsize=1024)
def _read_xml(xml: str, size: int, changed: int) -> tuple[str, int, str]:
    """Return the name of the root, how many bytes of weights are referred to, and what is invalid.

    `size` and `changed` distinguish the contents.
    """
    root, needed, open_ = "", 0, 0
    try:
        for event, element in ElementTree.iterparse(xml, ("start", "end")):
            if event == "start":
                root = root or element.tag
                open_ += 1
                continue
            open_ -= 1
            if element.tag == "data" and "offset" in element.attrib:
                needed = max(needed, int(element.attrib["offset"]) + int(element.attrib.get("size", 0)))
            if open_ == 2:  # a layer or an edge: read, and no longer needed
                element.clear()
    except ElementTree.ParseError as error:
        return root, needed, f"{error.position[0]}: not XML: {error}"
    return root, needed, ""


def read_mapping(path: Path) -> Mapping:
    """Return the aliases of the model in a directory; none for a file. Raises LoadError."""
    file = path / MAPPING_FILE
    if not file.is_file():
        return Mapping()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Mapping)
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(file)) from error
    except msgspec.MsgspecError as error:
        raise LoadError(
            f"expected objects `inputs` and `outputs` of names: {error}", file=str(file)
        ) from error

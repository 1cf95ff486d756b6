"""An entry of `model_config_list` that is a plain model: its options, and the versions to serve of it.

The keys are OVMS's. Each version is a specification of its own under one name: it loads, fails and retires
by itself. Versions are the folders of `base_path` with a number for a name, as TensorFlow's exporters write
it too: 00000001. A single file, and a directory with one model and without such folders, are version 1.

A version that is not whole, because its files still arrive, has a fault, and does not count as the newest.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ovserve.engine.model.files import LANGUAGE_MODELS, cloud_fault, refusal
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.plugin_config import properties_of
from ovserve.kinds.tensors.spec import KSERVE_TYPES, TensorSpec, is_model_file, model_file, unfinished
from ovserve.serving.settings import GRAPH_FILE, ServableSpec
from ovserve.serving.status import GRAPH_VERSION

MAX_BATCH, MAX_DELAY = 1024, 1_000_000  # rows, microseconds
MAX_NIREQ = 100_000
_VERSION = re.compile("0*[1-9][0-9]{0,17}")  # gRPC carries versions in 64 bits
_DIMENSION = r"(-1|[0-9]+(\s*:\s*[0-9]+)?)"
_SIZE = re.compile(rf"auto|{_DIMENSION}", re.IGNORECASE)
_SHAPE = re.compile(rf"auto|[(\[]?\s*({_DIMENSION}\s*(,\s*{_DIMENSION}\s*)*,?\s*)?[)\]]?", re.IGNORECASE)
_COLOURS = ("BGR", "RGB")
# By the names of OpenVINO and of KServe's protocol.
PRECISIONS = {
    alias: kind
    for kind, name in KSERVE_TYPES.items()
    if kind not in ("string", "boolean")
    for alias in (kind.upper(), name)
}

# The keys of an entry that are flags too, with their help; `target_device` and `plugin_config` are those of
# graphs.
FLAGS = {
    "shape": "shape of the input, such as (1,3,200:500,-1) or auto; or a JSON object of shapes by input",
    "batch_size": "size of the batch: a number, -1 for any, a range such as 1:8, or auto",
    "layout": "layout, or those of client and model, such as NHWC:NCHW; or a JSON object by tensor",
    "precision": "type of the input that clients send, such as FP32 or U8; or a JSON object by input",
    "color_format": "order of the colours: BGR or RGB, or those of client and model, such as RGB:BGR",
    "mean": "number that is subtracted from the input, or a JSON list for its channels",
    "scale": "number that the input is divided by after that, or a JSON list for its channels",
    "model_version_policy": 'versions that are served, such as {"latest": {"num_versions": 2}}',
    "nireq": "infer requests; 0: as many as the device recommends",
}
DEVICE_FLAGS = ("target_device", "plugin_config")
_DECODED = ("model_version_policy", "plugin_config", "mean", "scale", "nireq")  # are JSON on a command line


class Policy(msgspec.Struct, frozen=True):
    """The versions to serve: the newest `latest`, or these, or all (both None)."""

    latest: int | None = 1
    specific: tuple[int, ...] | None = None

    def of(self, there: list[int]) -> list[int]:
        """Return those to serve. A specific version is among them even if it is not there."""
        if self.specific is not None:
            return sorted({*self.specific})
        return sorted(there)[-self.latest :] if self.latest is not None else sorted(there)


def looks_plain(base: Path) -> bool:
    """Return whether a path holds a model and no graph."""
    try:
        if base.is_file():
            return is_model_file(base)
        if not base.is_dir() or (base / GRAPH_FILE).is_file():
            return False
        versions, _ = _versions(base)
        if any(os.path.isfile(folder / GRAPH_FILE) for folder in versions.values()):
            return False
        return bool(versions) or _has_model(base)
    except OSError as error:
        return not refusal(error)


def model_specs(name: str, base: Path, fields: Mapping[str, Any], origin: str) -> list[ServableSpec]:
    """Return one specification for each version. What is wrong becomes the fault of the only one.

    `fields` are the entry's values.
    """
    try:
        options, policy = _options(fields), _policy(fields.get("model_version_policy"))
        places, warnings = _places(base)
    except LoadError as error:
        return [_spec(name, base, GRAPH_VERSION, None, origin, error.reason)]
    except OSError as error:
        return [_spec(name, base, GRAPH_VERSION, None, origin, refusal(error))]
    faults = {version: fault for version, path in places.items() if (fault := unfinished(path))}
    versions = {*policy.of([version for version in places if version not in faults])}
    versions |= {version for version in policy.of(list(places)) if version in faults}
    specs = []
    for version in sorted(versions):
        if version in places:
            path, fault = places[version], faults.get(version, "")
            spec = _spec(name, path, version, TensorSpec(str(path), **options), origin, fault)
            specs.append(replace(spec, warnings=warnings))
        else:
            fault = f"{base} has no version {version}; it has {', '.join(map(str, sorted(places)))}"
            specs.append(_spec(name, base / str(version), version, None, origin, fault))
    return specs


def option_fault(key: str, value: Any) -> str:
    """Return why the value of an option is refused; "" if it is not."""
    try:
        _options({key: value})
        if key == "model_version_policy":
            _policy(value)
    except LoadError as error:
        return error.reason
    return ""


def entry_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an entry of config.json that flags of a command line stand for.

    Raises InvalidArgument that names the flag.
    """
    entry: dict[str, Any] = {}
    for name, value in flags.items():
        if name not in FLAGS and name not in DEVICE_FLAGS:
            raise InvalidArgument(f"--{name}: it is for graphs, and this is a plain model")
        entry[name] = value
        if isinstance(value, str) and (name in _DECODED or value.lstrip().startswith("{")):
            with suppress(ValueError):  # the check below says what is expected
                entry[name] = json.loads(value)
    for name, value in entry.items():
        if fault := option_fault(name, value):
            raise InvalidArgument(f"--{fault}")
    return entry


def _spec(
    name: str, base: Path, version: int, model: TensorSpec | None, origin: str, fault: str = ""
) -> ServableSpec:
    return ServableSpec(name, base, base / GRAPH_FILE, None, origin, fault, model, version, plain=True)


def _versions(base: Path) -> tuple[dict[int, Path], tuple[str, ...]]:
    """Return the folders by version, and warnings of folders with a number for a name that are none."""
    folders: dict[int, Path] = {}
    warnings = []
    numbered = [folder for folder in base.iterdir() if folder.name.isdecimal() and folder.is_dir()]
    for folder in sorted(numbered, key=lambda folder: (len(folder.name), folder.name)):
        if not _VERSION.fullmatch(folder.name):
            warnings.append(f"{folder} is not served: versions are numbers from 1 to {10**18 - 1}")
        elif (version := int(folder.name)) in folders:
            warnings.append(f"{folder} is not served: {folders[version]} is version {version} too")
        else:
            folders[version] = folder
    return folders, tuple(warnings)


def _has_model(directory: Path) -> bool:
    try:
        model_file(directory)
    except LoadError:
        return False
    return True


def _places(base: Path) -> tuple[dict[int, Path], tuple[str, ...]]:
    """Return the versions there are, and warnings. Raises LoadError."""
    if base.is_file():
        if not is_model_file(base):
            raise LoadError(f"base_path: {base} is not a model file")
        return {GRAPH_VERSION: base}, ()
    if not base.is_dir():
        nothing = "" if cloud_fault(base) else "; neither a graph nor a model is there"
        raise LoadError(f"base_path: {absent(base)}{nothing}")
    folders, warnings = _versions(base)
    if folders:
        return folders, warnings
    if _has_model(base):
        return {GRAPH_VERSION: base}, ()
    raise LoadError("base_path: " + "; ".join((nothing_served(base), *warnings)))


def absent(base: Path) -> str:
    """Return that a path does not exist, and what may be meant."""
    if fault := cloud_fault(base):
        return fault
    hint = "" if "\\" not in str(base) else "; folders are separated by '/' here, and not by '\\'"
    return f"{base} does not exist{hint}"


def nothing_served(base: Path) -> str:
    """Return what a directory lacks to be served."""
    if any((base / name).is_file() for name in LANGUAGE_MODELS):
        return (
            f"{base} has a language model and no {GRAPH_FILE}: `ovserve serve {base}` serves it alone, and "
            f"`ovserve new graph NAME --model {base}` writes a graph for a configuration"
        )
    return f"{base} has no {GRAPH_FILE}, no folder named by a version (1, 2, ...) and no model"


def _policy(value: Any) -> Policy:
    """Raises LoadError."""
    field = "model_version_policy"
    if value is None:
        return Policy()
    kinds = ("latest", "specific", "all")
    if not isinstance(value, dict) or len(value) != 1 or (kind := next(iter(value))) not in kinds:
        raise LoadError(f"{field}: expected exactly one of latest, specific and all, got {json.dumps(value)}")
    inside = value[kind] if isinstance(value[kind], dict) else {"": None}
    if kind == "all" and not inside:
        return Policy(None)
    if kind == "latest" and inside.keys() <= {"num_versions"}:
        number: Any = inside.get("num_versions", 1)
        if _whole(number) and number >= 1:
            return Policy(number)
    if kind == "specific" and inside.keys() == {"versions"}:
        listed = inside["versions"]
        if isinstance(listed, list) and listed and all(_whole(v) and v >= 1 for v in listed):
            return Policy(None, tuple(listed))
    example = '{"latest": {"num_versions": 1}}, {"specific": {"versions": [1]}} or {"all": {}}'
    raise LoadError(f"{field}: expected one as {example}, got {json.dumps(value)}")


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a TensorSpec. Raises LoadError that begins with the key."""
    nireq = fields.get("nireq", 0)
    if not _whole(nireq) or not 0 <= nireq <= MAX_NIREQ:
        raise LoadError(f"nireq: expected 0 to {MAX_NIREQ}, got {nireq!r}")
    batch = fields.get("batch_size", 0)
    config = fields.get("plugin_config", {})
    if not isinstance(config, dict):
        raise LoadError(f"plugin_config: expected a JSON object, got {json.dumps(config)}")
    try:
        properties = properties_of(config)
    except LoadError as error:
        raise LoadError(f"plugin_config.{error}") from None
    if not (isinstance(batch, str) or _whole(batch)) or not _SIZE.fullmatch(str(batch).strip()):
        raise LoadError(f"batch_size: expected a number, -1, a range such as 1:8 or auto, got {batch!r}")
    shapes = _by_name(fields.get("shape"), "shape")
    for name, text in shapes:
        if not _SHAPE.fullmatch(text.strip()):
            where = f"shape of {name!r}" if name else "shape"
            raise LoadError(f"{where}: expected one as (1,3,200:500,-1), or auto, got {text!r}")
    isolation = fields.get("isolation", "shared")
    if isolation not in ("shared", "process"):
        raise LoadError(f"isolation: expected shared or process, got {isolation!r}")
    fixed = fields.get("fixed_shapes", True)
    if not isinstance(fixed, bool):
        raise LoadError(f"fixed_shapes: expected true or false, got {json.dumps(fixed)}")
    return {
        "device": fields.get("target_device") or "CPU",
        "properties": json.dumps(properties, sort_keys=True),
        "shapes": shapes,
        "layouts": _by_name(fields.get("layout"), "layout"),
        # As in OVMS, a shape wins over a batch size, and 0 means the model's own.
        "batch_size": "" if shapes or str(batch).strip() == "0" else str(batch),
        "nireq": nireq,
        **_preprocessing(fields),
        "isolation": isolation,
        "fixed_shapes": fixed,
        **_batching(fields.get("dynamic_batching")),
    }


def _preprocessing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of what is done to inputs. Raises LoadError."""
    colours = str(fields.get("color_format", "BGR")).upper().split(":")
    if len(colours) > 2 or not {*colours} <= {*_COLOURS}:
        raise LoadError(
            f"color_format: expected BGR or RGB, got {fields['color_format']!r}; those of client and model "
            "are written BGR:RGB"
        )
    precisions = []
    for name, text in _by_name(fields.get("precision"), "precision"):
        kinds = [PRECISIONS.get(one.strip(), "") for one in text.upper().split(":")]
        if len(kinds) > 2 or "" in kinds:
            supported = ", ".join(name for kind, name in KSERVE_TYPES.items() if kind in PRECISIONS.values())
            raise LoadError(f"precision: expected one of {supported}, or two as FP32:FP16, got {text!r}")
        precisions.append((name, ":".join(kinds)))
    return {
        "color_format": colours[0],
        "model_color_format": colours[-1] if colours[-1] != colours[0] else "",
        "means": _by_channel(fields.get("mean"), "mean"),
        "scales": _by_channel(fields.get("scale"), "scale"),
        "precisions": tuple(precisions),
    }


def _by_channel(value: Any, key: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of an input and a number, or a list of numbers, as JSON."""
    if isinstance(value, str) and value:  # OVMS's files and command line write lists as text
        with suppress(ValueError):
            value = json.loads(re.sub(r"^\s*\((.*)\)\s*$", r"[\1]", value))
    if value is None or value == "":
        return ()
    by_input = value if isinstance(value, dict) else {"": value}
    for one in by_input.values():
        numbers = one if isinstance(one, list) else [one]
        if not numbers or not all(_number(number) and (number or key != "scale") for number in numbers):
            forms = "a number, a list for the channels such as [123.7,116.3,103.5], or an object of these"
            zero = ", and not 0" if key == "scale" else ""
            raise LoadError(f"{key}: expected {forms} by input{zero}; got {json.dumps(value)}")
    return tuple(sorted((name, json.dumps(one)) for name, one in by_input.items()))


def _batching(fields: Any) -> dict[str, Any]:
    """Return the fields of `dynamic_batching`, which has Triton's names."""
    field = "dynamic_batching"
    if fields is None:
        return {}
    size, delay = "max_batch_size", "max_queue_delay_microseconds"
    if not isinstance(fields, dict) or not {size} <= fields.keys() <= {size, delay}:
        example = f'{{"{size}": 8, "{delay}": 0}}'
        raise LoadError(f"{field}: expected an object as {example}, got {json.dumps(fields)}")
    for name, low, high in ((size, 2, MAX_BATCH), (delay, 0, MAX_DELAY)):
        value = fields.get(name, low)
        if not _whole(value) or not low <= value <= high:
            raise LoadError(f"{field}.{name}: expected {low} to {high}, got {json.dumps(value)}")
    return {"max_batch_size": fields[size], "max_queue_delay": fields.get(delay, 0) / 1e6}


def _by_name(value: Any, key: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of tensor and text; one text alone is the only input's."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            return (("", value),)
        try:
            value = json.loads(value)  # OVMS's command line writes maps as text
        except ValueError as error:
            raise LoadError(f"{key}: not JSON: {error}, got {value!r}") from error
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise LoadError(f"{key}: expected text, or an object of text by tensor, got {json.dumps(value)}")
    return tuple(sorted(value.items()))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

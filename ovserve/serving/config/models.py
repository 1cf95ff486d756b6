"""An entry of `model_config_list` that is a plain model: its options, and the versions to serve of it.

The keys are OVMS's. Each version is a specification of its own under one name: it loads, fails and retires
by itself. Versions are the folders of `base_path` with a number for a name. A single file, and a directory
with one model and without such folders, are version 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovserve.engine.model.tensor_files import is_model_file, model_file
from ovserve.engine.protocol.tensors import TensorSpec
from ovserve.errors import LoadError
from ovserve.serving.spec import GRAPH_FILE, ServableSpec
from ovserve.serving.status import VERSION

MAX_BATCH, MAX_DELAY = 1024, 1_000_000  # rows, microseconds
MAX_NIREQ = 100_000
_VERSION = re.compile("[1-9][0-9]{0,17}")  # gRPC carries versions in 64 bits
_DIMENSION = r"(-1|[0-9]+(\s*:\s*[0-9]+)?)"
_SIZE = re.compile(rf"auto|{_DIMENSION}", re.IGNORECASE)
_SHAPE = re.compile(rf"auto|[(\[]?\s*({_DIMENSION}\s*(,\s*{_DIMENSION}\s*)*,?\s*)?[)\]]?", re.IGNORECASE)
_SCALARS = (str, bool, int, float)


@dataclass(frozen=True)
class Policy:
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
    if base.is_file():
        return is_model_file(base)
    if not base.is_dir() or (base / GRAPH_FILE).is_file():
        return False
    if any((folder / GRAPH_FILE).is_file() for folder in _versions(base).values()):
        return False
    return bool(_versions(base)) or _has_model(base)


def model_specs(name: str, base: Path, given: Mapping[str, Any], origin: str) -> list[ServableSpec]:
    """Return one specification for each version. What is wrong becomes the fault of the only one.

    `given` are the entry's values.
    """
    try:
        options, policy = _options(given), _policy(given.get("model_version_policy"))
        places = _places(base)
        wanted = policy.of(list(places))
    except LoadError as error:
        return [_spec(name, base, VERSION, None, origin, error.reason)]
    found = []
    for version in wanted:
        if version in places:
            path = places[version]
            found.append(_spec(name, path, version, TensorSpec(str(path), **options), origin))
        else:
            fault = f"{base} has no version {version}; it has {', '.join(map(str, sorted(places)))}"
            found.append(_spec(name, base / str(version), version, None, origin, fault))
    return found


def _spec(
    name: str, base: Path, version: int, model: TensorSpec | None, origin: str, fault: str = ""
) -> ServableSpec:
    return ServableSpec(name, base, base / GRAPH_FILE, None, origin, fault, model, version, plain=True)


def _versions(base: Path) -> dict[int, Path]:
    """Return the folders by version. 01 is not a version: it would be a second name of 1."""
    found = {}
    for folder in base.iterdir():
        if _VERSION.fullmatch(folder.name) and folder.is_dir():
            found[int(folder.name)] = folder
    return found


def _has_model(directory: Path) -> bool:
    try:
        model_file(directory)
    except LoadError:
        return False
    return True


def _places(base: Path) -> dict[int, Path]:
    """Return the versions there are. Raises LoadError."""
    if base.is_file():
        if not is_model_file(base):
            raise LoadError(f"base_path: {base} is not a model file")
        return {VERSION: base}
    if not base.is_dir():
        raise LoadError(f"base_path: {base} does not exist; neither a graph nor a model is there")
    if found := _versions(base):
        return found
    if _has_model(base):
        return {VERSION: base}
    raise LoadError(
        f"base_path: {base} has no {GRAPH_FILE}, no folder named by a version (1, 2, ...) and no model"
    )


def _policy(given: Any) -> Policy:
    """Raises LoadError."""
    field = "model_version_policy"
    if given is None:
        return Policy()
    kinds = ("latest", "specific", "all")
    if not isinstance(given, dict) or len(given) != 1 or (kind := next(iter(given))) not in kinds:
        raise LoadError(f"{field}: expected exactly one of latest, specific and all, got {json.dumps(given)}")
    inside = given[kind] if isinstance(given[kind], dict) else {"": None}
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
    wanted = '{"latest": {"num_versions": 1}}, {"specific": {"versions": [1]}} or {"all": {}}'
    raise LoadError(f"{field}: expected one as {wanted}, got {json.dumps(given)}")


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a TensorSpec. Raises LoadError that begins with the key."""
    nireq = given.get("nireq", 0)
    if not _whole(nireq) or not 0 <= nireq <= MAX_NIREQ:
        raise LoadError(f"nireq: expected 0 to {MAX_NIREQ}, got {nireq!r}")
    batch = given.get("batch_size", 0)
    if not isinstance(batch, str) and not _whole(batch):
        raise LoadError(f"batch_size: expected a number, a range such as 1:8 or auto, got {batch!r}")
    config = given.get("plugin_config", {})
    for key, value in config.items():
        if not isinstance(value, _SCALARS):
            raise LoadError(
                f"plugin_config.{key}: expected a string, number or boolean, got {json.dumps(value)}"
            )
    if not _SIZE.fullmatch(str(batch).strip()):
        raise LoadError(f"batch_size: expected a number, -1, a range such as 1:8 or auto, got {batch!r}")
    shapes = _by_name(given.get("shape"), "shape")
    for name, text in shapes:
        if not _SHAPE.fullmatch(text.strip()):
            where = f"shape of {name!r}" if name else "shape"
            raise LoadError(f"{where}: expected one as (1,3,200:500,-1), or auto, got {text!r}")
    isolation = given.get("isolation", "shared")
    if isolation not in ("shared", "process"):
        raise LoadError(f"isolation: expected shared or process, got {isolation!r}")
    fixed = given.get("fixed_shapes", True)
    if not isinstance(fixed, bool):
        raise LoadError(f"fixed_shapes: expected true or false, got {json.dumps(fixed)}")
    colours = str(given.get("color_format", "BGR")).upper()
    if colours not in ("BGR", "RGB"):
        raise LoadError(f"color_format: expected BGR or RGB, got {given['color_format']!r}")
    return {
        "device": given.get("target_device") or "CPU",
        "properties": json.dumps(config, sort_keys=True),
        "shapes": shapes,
        "layouts": _by_name(given.get("layout"), "layout"),
        # As in OVMS, a shape wins over a batch size, and 0 means the model's own.
        "batch_size": "" if shapes or str(batch).strip() == "0" else str(batch),
        "nireq": nireq,
        "color_format": colours,
        "isolation": isolation,
        "fixed_shapes": fixed,
        **_batching(given.get("dynamic_batching")),
    }


def _batching(given: Any) -> dict[str, Any]:
    """Return the fields of `dynamic_batching`, which has Triton's names."""
    field = "dynamic_batching"
    if given is None:
        return {}
    size, delay = "max_batch_size", "max_queue_delay_microseconds"
    if not isinstance(given, dict) or not {size} <= given.keys() <= {size, delay}:
        wanted = f'{{"{size}": 8, "{delay}": 0}}'
        raise LoadError(f"{field}: expected an object as {wanted}, got {json.dumps(given)}")
    for name, low, high in ((size, 2, MAX_BATCH), (delay, 0, MAX_DELAY)):
        value = given.get(name, low)
        if not _whole(value) or not low <= value <= high:
            raise LoadError(f"{field}.{name}: expected {low} to {high}, got {json.dumps(value)}")
    return {"max_batch_size": given[size], "max_queue_delay": given.get(delay, 0) / 1e6}


def _by_name(value: Any, key: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of tensor and text; one text alone is the only input's."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        if value.lstrip().startswith("{"):  # OVMS's command line writes maps as text
            try:
                value = json.loads(value)
            except ValueError as error:
                raise LoadError(f"{key}: not JSON: {error}") from error
        else:
            return (("", value),)
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise LoadError(f"{key}: expected text, or an object of text by tensor, got {json.dumps(value)}")
    return tuple(sorted(value.items()))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

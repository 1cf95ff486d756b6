"""Administration calls of Triton and TensorFlow Serving, for HTTP and gRPC: the index of the
repository, load and unload by name, the state of one model, and the replacement of all served models.

The states are those of `serving/status.py`, the changes those of `serving/manager.py`; this module has the
rules of the calls. Calls that change something need the right to.

Triton's log settings, mapped to this server's one log level.

log_verbose_level above 0 is DEBUG. Otherwise the least severe enabled one of log_info, log_warning and
log_error decides. The destination and format of the log are fixed at start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ovserve import __version__
from ovserve.access import current_request
from ovserve.api.kserve import Parameter, as_whole
from ovserve.api.kserve.tensor import BYTES, display
from ovserve.errors import (
    InvalidArgument,
    LoadError,
    ModelNotFound,
    OvserveError,
    Unavailable,
    UnsupportedParameter,
)
from ovserve.kinds.tensors.spec import TensorInfo
from ovserve.serving.config.models import looks_plain, model_specs
from ovserve.serving.entries import DEFAULT_VERSIONS
from ovserve.serving.interface import Interface, http_streams
from ovserve.serving.manager import RETRY_AFTER, Manager
from ovserve.serving.servable import State
from ovserve.serving.sessions import input_info, output_info
from ovserve.serving.settings import ServableSpec
from ovserve.serving.status import GRAPH_VERSION, ReloadResult, ServableStatus, VersionState
from ovserve.telemetry.metrics import Call, Front

log = logging.getLogger(__name__)

# Metadata calls of KServe and Triton about the server and a graph, for HTTP and gRPC.


BACKEND = "ovserve"
UNTYPED = "INVALID"  # OVMS's name for the datatype of a stream that only the graph knows


class End(NamedTuple):
    """An input or output. `shape` is empty if the graph accepts any."""

    name: str
    datatype: str
    shape: list[int]


class ServerMetadata(msgspec.Struct, frozen=True):
    name: str = "ovserve"
    version: str = __version__
    extensions: tuple[str, ...] = (
        "binary_tensor_data",
        "parameters",
        "model_repository",
        "model_configuration",
        "statistics",
        "logging",
    )


@dataclass(frozen=True)
class ModelMetadata:
    name: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    decoupled: bool = True  # any graph may answer one request many times
    platform: str = "OpenVINO"
    versions: tuple[str, ...] = (str(GRAPH_VERSION),)
    rt_info: Mapping[str, object] = field(default_factory=dict)  # the model's own description, if it has one


def _config(end: End) -> dict[str, Any]:
    type_ = "TYPE_STRING" if end.datatype == BYTES else f"TYPE_{end.datatype}"
    return {"name": end.name, "data_type": type_, "dims": end.shape}


def _end(name: str, info: TensorInfo | None) -> End:
    return End(name, UNTYPED, []) if info is None else End(name, info.datatype, list(info.shape))


VERBOSE = "log_verbose_level"
_LEVELS = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
_FIXED = {"log_file": "--log_path", "log_format": "--log_format"}


def log_settings() -> dict[str, Parameter]:
    level = logging.getLogger().getEffectiveLevel()
    return {
        **{name: level <= severity for name, severity in _LEVELS.items()},
        VERBOSE: int(level <= logging.DEBUG),
    }


def change_log_settings(changes: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Apply changes; return the active settings. Raises InvalidArgument naming the setting; nothing has
    changed then."""
    settings = log_settings()
    for name, value in changes.items():
        if name in _FIXED:
            raise InvalidArgument(f"settings.{name}: fixed at start, by {_FIXED[name]}", param=name)
        if name not in settings:
            raise InvalidArgument.at("settings", f"{name!r} is not known; known: {', '.join(settings)}")
        if name == VERBOSE:
            if (number := as_whole(value)) is None or number < 0:
                raise InvalidArgument(f"settings.{name}: expected 0 or more, got {value!r}", param=name)
            value = number
        elif not isinstance(value, bool):
            raise InvalidArgument(f"settings.{name}: expected true or false, got {value!r}", param=name)
        settings[name] = value
    if not settings["log_error"]:
        raise InvalidArgument("settings.log_error: errors are always logged", param="log_error")
    if changes:
        level = logging.DEBUG if settings[VERBOSE] else min(s for n, s in _LEVELS.items() if settings[n])
        logging.getLogger().setLevel(level)
        log.warning("log level is now %s, on request", logging.getLevelName(level))
    return log_settings()


# tritonclient always sends it; graphs do not depend on one another.
WITHOUT_EFFECT = {"unload_dependents"}
UNLOADED = "unloaded"

NO_SHARED_MEMORY = "tensors travel in messages: this server maps no memory of its clients"
NO_TRACES = "this server does not support Triton's traces"


class Listed(NamedTuple):
    """A row of Triton's index. `state` is one of READY, LOADING, UNLOADING, UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """A model of a list that replaces the set; `policy` is as in OVMS's configuration, {} for the default."""

    name: str
    base_path: str
    policy: Mapping[str, Any] = field(default_factory=dict)


class Administration:
    server = ServerMetadata()

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    @property
    def ready(self) -> bool:
        return self._manager.ready

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(s.name for s in self._manager.usable))

    @contextmanager
    def counted(self, name: str, front: Front, method: str) -> Iterator[None]:
        """Count a call in OVMS's metrics. An unknown model name does not become a label."""
        call = Call(front.api, front.interface, method)
        try:
            yield
        except ModelNotFound:
            raise
        except OvserveError:
            self._manager.metrics.of(name).lookup_failures[call] += 1
            raise
        self._manager.metrics.of(name).lookups[call] += 1

    def model_ready(self, name: str, version: str = "") -> bool:
        """Return False while it cannot answer. Raises ModelNotFound."""
        try:
            return self._manager.get(name, version).state is State.AVAILABLE
        except Unavailable:
            return False

    def model(self, name: str, version: str = "") -> ModelMetadata:
        """Return the metadata of a model. Raises ModelNotFound or Unavailable."""
        servable = self._manager.get(name, version)
        if servable.model is not None:
            facts = servable.model.model
            return ModelMetadata(
                name,
                tuple(End(i.name, i.datatype, list(i.shape)) for i in facts.inputs),
                tuple(End(o.name, o.datatype, list(o.shape)) for o in facts.outputs),
                decoupled=False,
                versions=tuple(self._manager.versions(name)),
                rt_info=facts.rt_info,
            )
        if servable.interface is Interface.HTTP:
            source, target = http_streams(servable.graph.plan)
            return ModelMetadata(name, (End(source, BYTES, [1]),), (End(target, BYTES, [1]),))
        plan = servable.graph.plan
        return ModelMetadata(
            name,
            tuple(_end(e.name, input_info(plan, e.name)) for e in plan.inputs),
            tuple(_end(e.name, output_info(plan, e.name)) for e in plan.outputs),
        )

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return KServe's document about a model; its `rt_info` is OVMS's."""
        model = self.model(name, version)
        document: dict[str, Any] = {
            "name": model.name,
            "versions": list(model.versions),
            "platform": model.platform,
            "inputs": [end._asdict() for end in model.inputs],
            "outputs": [end._asdict() for end in model.outputs],
        }
        return document | ({"rt_info": {"model_info": model.rt_info}} if model.rt_info else {})

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return Triton's configuration of a model."""
        model = self.model(name, version)
        return {
            "name": model.name,
            "platform": model.platform,
            "backend": BACKEND,
            "version_policy": {"specific": {"versions": list(map(int, model.versions))}},
            "max_batch_size": 0,
            "input": [_config(end) for end in model.inputs],
            "output": [_config(end) for end in model.outputs],
            "model_transaction_policy": {"decoupled": model.decoupled},
        }

    def index(self, *, ready: bool = False, repository: str = "") -> list[Listed]:
        """Return all models that the caller may use; with `ready`, only those that answer."""
        if repository:
            raise InvalidArgument.at(
                "repository_name", f"there is one repository, without a name; got {repository!r}"
            )
        rows = [_listed(status) for status in self._manager.usable_statuses]
        return [row for row in rows if row.state == "READY" or not ready]

    def status(self, name: str, version: str = "") -> list[ServableStatus]:
        """Return the state of each version, or of one. Raises ModelNotFound."""
        if not name:
            raise InvalidArgument.at("model_spec.name", "required")
        if not current_request().caller.may_use(name):
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        statuses = self._manager.statuses(name)
        if version in DEFAULT_VERSIONS:
            return statuses
        if matching := [status for status in statuses if str(status.version) == version]:
            return matching
        there = ", ".join(str(status.version) for status in statuses)
        raise ModelNotFound(
            f"model {name!r} has only version {there}, not {display(version)}", param="model_version"
        )

    async def load(self, name: str, parameters: Mapping[str, Parameter | bytes]) -> None:
        """Load the name as configured now. Raises ModelNotFound, or LoadError with the reason; the
        previous version is still served then.
        """
        self._may_change()
        _check_name(name)
        for parameter in parameters:
            what = "a graph is configured in its graph.pbtxt"
            if parameter.startswith("file:"):
                what = "files from clients are not accepted"
            raise UnsupportedParameter.at(f"parameters.{parameter}", what)
        await self._manager.load(name)

    async def unload(self, name: str, parameters: Mapping[str, Parameter | bytes]) -> None:
        """Unload it until it is loaded, or a reload is requested. Raises ModelNotFound."""
        self._may_change()
        _check_name(name)
        for parameter in parameters.keys() - WITHOUT_EFFECT:
            raise UnsupportedParameter.at(f"parameters.{parameter}", "unknown; known: unload_dependents")
        await self._manager.unload(name)

    async def reload(self) -> ReloadResult:
        """Apply the current configuration. Raises LoadError with what could not be loaded."""
        self._may_change()
        return _checked(await self._manager.reload())

    async def replace(self, entries: Iterable[Entry]) -> ReloadResult:
        """Serve only these, until the next reload. Raises LoadError with what could not be loaded."""
        self._may_change()
        specs: dict[str, list[ServableSpec]] = {}
        for i, entry in enumerate(entries):
            where = f"config[{i}]"
            for key, value in (("name", entry.name), ("base_path", entry.base_path)):
                if not value:
                    raise InvalidArgument.at(f"{where}.{key}", "required")
            if entry.name in specs:
                raise InvalidArgument.at(f"{where}.name", f"{entry.name!r} is given twice")
            specs[entry.name] = _specs_of(entry, f"{where}.model_version_policy")
        if not specs:
            raise InvalidArgument.at(
                "config",
                "the list is empty; name the models to serve, or give no list to read the "
                "configuration again",
            )
        return _checked(await self._manager.replace(chain.from_iterable(specs.values())))

    def log_settings(self, changes: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """Return the current settings, after these changes if there are any."""
        if changes:
            current_request().caller.require_admin()
        return change_log_settings(changes)

    def _may_change(self) -> None:
        current_request().caller.require_admin()
        if self._manager.stopping:
            raise Unavailable("the server is stopping", retry_after=RETRY_AFTER)


def _specs_of(entry: Entry, field: str) -> list[ServableSpec]:
    """Raises InvalidArgument for versions that a graph does not have."""
    base, origin = Path(entry.base_path), "a list of models from a client"
    if looks_plain(base):
        policy_fields = {"model_version_policy": entry.policy} if entry.policy else {}
        return model_specs(entry.name, base.absolute(), policy_fields, origin)
    versions = entry.policy.get("specific", {}).get("versions", [GRAPH_VERSION])
    if versions != [GRAPH_VERSION]:
        raise InvalidArgument.at(field, f"a graph has only version {GRAPH_VERSION}, got {versions}")
    return [ServableSpec.of_directory(entry.name, base, origin=origin)]


def _check_name(name: str) -> None:
    if not name:
        raise InvalidArgument.at("model_name", "required")


def _checked(result: ReloadResult) -> ReloadResult:
    if result.failed:
        raise LoadError(f"not loaded: {result.errors}")
    return result


def _listed(status: ServableStatus) -> Listed:
    state = {
        VersionState.START: "LOADING",
        VersionState.LOADING: "LOADING" if status.error_code == "OK" else "UNAVAILABLE",
        VersionState.AVAILABLE: "READY",
        VersionState.UNLOADING: "UNLOADING",
        VersionState.END: "UNAVAILABLE",
    }[status.state]
    reason = status.reason or status.state_detail or (UNLOADED if status.state is VersionState.END else "")
    return Listed(status.name, str(status.version), state, reason)

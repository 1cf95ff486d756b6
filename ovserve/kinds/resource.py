"""ResourceKind: the declaration of a node that holds an engine. The loader reads it and knows no kinds.

A kind of engine comes into the server by a calculator that derives from `EngineCalculator` and names its
`ResourceKind`: how its options are parsed, which engine they ask for, and what its nodes get as a side packet
when that engine is loaded. Calculators are found in this package, by entry points, and next to a graph.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from ovserve.engine.admission.calls import AdmittedCall, CallAdmission, CallSession
from ovserve.engine.admission.text import TextAdmission
from ovserve.engine.client.calls import CallClient
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.hosts import Hosts
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import Facts, Isolation, Spec
from ovserve.errors import LoadError
from ovserve.graph import Calculator, Node
from ovserve.sandbox.audio_loader import AudioLoader
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media
from ovserve.sandbox.templates import Templates
from ovserve.telemetry.metrics import KindMetrics

if TYPE_CHECKING:
    from google.protobuf.message import Message

# The names of these classes for nodes.
Caller = CallAdmission
CallerSession = CallSession
ItemStream = AdmittedCall

O = TypeVar("O")  # noqa: E741  the parsed options of a node
R = TypeVar("R")


class Resource(Protocol):
    """The side packet of the nodes that share an engine."""

    def facts(self) -> Mapping[str, object]:
        """Return facts about the model, for `/v3/capabilities`: plain JSON values."""


@runtime_checkable
class NamedVariants(Protocol):
    """A resource whose model answers under names of its own too, such as those of LoRA adapters."""

    @property
    def variants(self) -> Collection[str]: ...

    @property
    def base_name(self) -> bool:
        """Return whether it answers under the name of its servable, without a variant."""


class Transcriber(Protocol):
    """A model that writes what is said: kinds.speech.node.SpeechResource in the server."""

    async def transcribe(self, data: str, param: str) -> str:
        """Return the text of audio, in base64 or as a data URL. Raises InvalidArgument naming `param`."""


class Host(msgspec.Struct, frozen=True):
    """The services that the server offers to the resources of one servable."""

    name: str  # of the servable
    code: bytes  # its graph and its authors' calculators, for fingerprints
    templates: Templates
    images: Media
    bodies: Bodies
    admit: Callable[[TextClient, Mapping[str, float]], TextAdmission]
    admit_calls: Callable[[CallClient, Mapping[str, float]], Caller]
    audio: AudioLoader
    metrics: KindMetrics  # kept across reloads
    version_metrics: KindMetrics  # of the version of a plain model


@dataclass(frozen=True, eq=False)
class ResourceKind(Generic[O]):
    """One kind of engine node.

    `tag` is that of the side packet by which nodes share the engine, `companions` are tags of side packets
    that graph files give such nodes and that carry nothing here.
    """

    tag: str
    packet_type: type[Any]
    options_type: type[Message]
    parse: Callable[[Node], O]  # once, when the graph is loaded; raises LoadError naming the field
    spec: Callable[[O], Spec]
    make: Callable[[Node, O, Any, Host], Awaitable[Resource]]  # the engine is loaded; raises LoadError
    companions: tuple[str, ...] = ()
    # What can be found wrong with the files of a model without loading it; raises LoadError.
    check: Callable[[Node, O], None] | None = None
    # Lines about the node for `ovserve check`.
    notes: Callable[[O], Sequence[str]] | None = None
    # Makes one engine of all nodes that name the same side packet; None: only one of them may.
    join: Callable[[Sequence[tuple[Node, O]]], O] | None = None
    # The engine that is loaded if the first one's error names the field `engine`; None: there is no other.
    fallback: Callable[[O], Spec | None] = lambda _: None


class EngineCalculator(Calculator):
    """A node that holds an engine: its options say which, and its side packet is made of it."""

    resource: ClassVar[ResourceKind[Any]]

    @classmethod
    def parse_options(cls, node: Node) -> Any:
        return cls.resource.parse(node)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "resource" in vars(cls):
            cls.options_type = cls.engine_options_type = cls.resource.options_type


def client_of(spec: Spec, settings: EngineSettings, hosts: Hosts) -> EngineClient[Any, Any]:
    """Return the server's handle for a spec, by its conversation."""
    if spec.conversation == "steps":
        return TextClient(spec, settings)  # type: ignore[arg-type]  # of text, by its conversation
    return CallClient(spec, settings, hosts)


def model_path(node: Node, text: str, read_files: Callable[[Path], R], *, task: str) -> tuple[Path, R]:
    """Return the path that `models_path` names, and what `read_files` finds there.

    `task`: with which `ovserve pull` may fetch such a model. Raises LoadError at the field.
    """
    if not text:
        raise node.error("required, but missing", "models_path")
    path: Path = (node.config.base / text).resolve()
    if not path.exists():
        name = path.name if path.parent.name == "models" else "SOURCE"
        hint = f"`ovserve pull {name} --task {task}` may fetch it"
        raise node.error(f"{path} does not exist; {hint}", "models_path", text)
    try:
        return path, read_files(path)
    except LoadError as error:
        raise node.error(f"{error.file}: {error.reason}", "models_path", text) from error


def facts_of(facts: Facts) -> dict[str, object]:
    """Return the facts of an engine that `/v3/capabilities` shows."""
    fields: dict[str, object] = msgspec.to_builtins(facts)
    return {name: value for name, value in fields.items() if name not in ("load_seconds", "max_calls")}


def parse_isolation(node: Node, text: str) -> Isolation:
    """Return the option `isolation` of a node whose kind is shared; empty: the default. Raises LoadError."""
    match text:
        case "" | "shared":
            return "shared"
        case "process":
            return "process"
    raise node.error(f"expected 'shared' or 'process', got {text!r}", "isolation")

"""Answers of Ollama's tags, ps, show, version and embed. `http/routes/ollama.py` knows the servables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from ovserve.api.ollama.body import LATEST, EmbeddingsRequest, EmbedRequest
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode
from ovserve.errors import Internal

# The release whose API this is. Editors ask for a minimum: VS Code's Copilot for 0.6.4.
API_VERSION = "0.13.0"
NEVER = "2318-01-01T00:00:00Z"  # when a model expires that stays


class Details(msgspec.Struct, kw_only=True):
    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str = ""


class Tag(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class Tags(msgspec.Struct):
    models: list[Tag]


class Process(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class Processes(msgspec.Struct):
    models: list[Process]


class Shown(msgspec.Struct, kw_only=True):
    modelfile: str
    parameters: str
    template: str
    license: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    version: str
    ovserve: str


class Embeddings(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class Embedding(msgspec.Struct):
    """The older form, of one text."""

    embedding: list[float]


@dataclass(frozen=True)
class Described:
    """One servable, as these answers describe it. Sizes are bytes; `held` is the engine's memory."""

    name: str
    created: int
    identity: str
    size: int
    held: int
    context: int
    format: str
    family: str
    quantization: str
    template: str
    parameters: Mapping[str, Any]
    capabilities: tuple[str, ...]

    @property
    def tag(self) -> str:
        return self.name if ":" in self.name else self.name + LATEST

    @property
    def modified(self) -> str:
        return datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z")

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.name} {self.identity}".encode()).hexdigest()

    @property
    def details(self) -> Details:
        families = [self.family] if self.family else []
        return Details(
            format=self.format, family=self.family, families=families, quantization_level=self.quantization
        )


def tags(models: list[Described]) -> bytes:
    entries = [
        Tag(name=m.tag, model=m.tag, modified_at=m.modified, size=m.size, digest=m.digest, details=m.details)
        for m in models
    ]
    return encode(Tags(entries))


def processes(models: list[Described]) -> bytes:
    entries = [
        Process(
            name=m.tag,
            model=m.tag,
            size=m.held or m.size,
            digest=m.digest,
            details=m.details,
            expires_at=NEVER,
            size_vram=0,
            context_length=m.context,
        )
        for m in models
    ]
    return encode(Processes(entries))


def show_body(model: Described) -> bytes:
    family = model.family or "model"
    info: dict[str, Any] = {"general.architecture": family}
    if model.context:
        info[f"{family}.context_length"] = model.context
    return encode(
        Shown(
            modelfile=f"# served by ovserve\nFROM {model.name}\n",
            parameters="\n".join(f"{name} {value}" for name, value in model.parameters.items()),
            template=model.template,
            license="",
            details=model.details,
            model_info=info,
            capabilities=list(model.capabilities),
            modified_at=model.modified,
        )
    )


# ---- embeddings: OpenAI's request and answer in between

_embed_decoder = msgspec.json.Decoder(EmbedRequest)
_older_decoder = msgspec.json.Decoder(EmbeddingsRequest)


def embeddings_request(body: bytes, name: str, *, older: bool) -> tuple[bytes, str, tuple[str, ...]]:
    """Return OpenAI's body for the servable `name`, the model as the client wrote it, and what has no effect.

    Raises InvalidArgument.
    """
    if older:
        old, unknown = decode_body(body, _older_decoder)
        return _request_body(name, input=old.prompt), old.model, _unused(old, unknown)
    request, unknown = decode_body(body, _embed_decoder)
    more = {} if request.dimensions is None else {"dimensions": request.dimensions}
    return _request_body(name, input=request.input, **more), request.model, _unused(request, unknown)


def _request_body(name: str, **fields: Any) -> bytes:
    return encode({"model": name, "encoding_format": "float", **fields})


def _unused(request: EmbedRequest | EmbeddingsRequest, unknown: Iterable[str]) -> tuple[str, ...]:
    ignored = [f for f in ("truncate", "options", "keep_alive") if getattr(request, f, None) is not None]
    return tuple(sorted([*unknown, *ignored]))


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class _Answer(msgspec.Struct):
    data: list[_Row]
    usage: _Usage = _Usage()


def embeddings_answer(body: bytes, model: str, nanoseconds: int, *, older: bool) -> bytes:
    """Return Ollama's answer for OpenAI's. Raises Internal for a graph that answers with something else."""
    try:
        response = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as error:
        raise Internal(f"the graph's answer is not OpenAI's list of embeddings: {error}") from error
    rows = [row.embedding for row in sorted(response.data, key=lambda row: row.index)]
    if older:
        return encode(Embedding(rows[0] if rows else []))
    count = response.usage.prompt_tokens
    return encode(
        Embeddings(model=model, embeddings=rows, total_duration=nanoseconds, prompt_eval_count=count)
    )

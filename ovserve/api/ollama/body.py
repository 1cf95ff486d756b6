"""The bodies of Ollama's chat, generate, embed and show, and what tags, ps, show, version and embed answer.

An option with an effect is a row of OPTIONS, num_predict or num_ctx. Others (num_gpu, mirostat ...) are
about Ollama's own runner; they are accepted and reported, as unknown fields are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ovserve.api import LATEST
from ovserve.api.openai.body import decode_body, show, without_type
from ovserve.api.openai.common import encode, rfc3339
from ovserve.api.openai.operation import Natural, NaturalOrMinusOne, Share, Temperature, TopCount, doc
from ovserve.api.openai.sampling import DRY, MAX_STOP, SEED_RANGE, XTC, Penalty, SamplingFields
from ovserve.api.openai.shapes import shape_of
from ovserve.errors import Internal, InvalidArgument
from ovserve.llm.arrangement import Effort

# Option: the field of SamplingFields, and its type.
OPTIONS: dict[str, tuple[str, Any]] = {
    "temperature": ("temperature", Temperature),
    "top_p": ("top_p", Share),
    "top_k": ("top_k", NaturalOrMinusOne),
    "min_p": ("min_p", Share),
    "seed": ("seed", Annotated[int, Meta(ge=SEED_RANGE[0], le=2**63 - 1)]),
    "repeat_penalty": ("repetition_penalty", Annotated[float, Meta(gt=0, le=1000)]),
    "presence_penalty": ("presence_penalty", Penalty),
    "frequency_penalty": ("frequency_penalty", Penalty),
    **{f.name: (f.name, f.type) for f in msgspec.structs.fields(SamplingFields) if f.name in (*DRY, *XTC)},
    "stop": ("stop", str | Annotated[list[str], Meta(max_length=MAX_STOP)]),
}
NUM_PREDICT = Annotated[int, Meta(ge=-2, le=2**31 - 1)]  # below 1: all the room that there is
NUM_CTX = Natural  # 0: the graph's
ANY_SEED = -1

Format = Annotated[str | dict[str, Any] | None, doc("json, or a JSON schema that the answer follows")]
Think = Annotated[bool | Effort | None, doc("given to templates that read a switch or an effort of thinking")]
KeepAlive = Annotated[Any, doc("reported: it has no effect; 0 without a prompt is refused")]
Images = Annotated[list[str] | None, doc("base64, of models that take images")]


class Function(msgspec.Struct):
    name: Annotated[str, doc("given to the chat template")]
    arguments: Annotated[
        dict[str, Any] | str | None, doc("an object or JSON text, given to the chat template")
    ] = None


class ToolCall(msgspec.Struct):
    function: Annotated[Function, doc("the function called and its arguments")]
    id: Annotated[str | None, doc("made up if it is missing")] = None


class Message(msgspec.Struct):
    role: Annotated[str, doc("system, user, assistant or tool", enum=("system", "user", "assistant", "tool"))]
    content: Annotated[str | None, doc("its text")] = None
    thinking: Annotated[str | None, doc("thoughts of an earlier turn, if the template shows them")] = None
    images: Images = None
    tool_calls: Annotated[list[ToolCall] | None, doc("calls made earlier")] = None
    tool_name: Annotated[str | None, doc("which tool's result it is, of a message with role tool")] = None
    tool_call_id: Annotated[str | None, doc("which call it answers; else calls are answered in order")] = None


class Shared(msgspec.Struct, kw_only=True):
    """Fields that chat and generate share."""

    model: Annotated[str, doc("the name under which a graph is served, with or without :latest")]
    stream: Annotated[bool | None, doc("false: one object; by default a line of JSON per piece")] = None
    format: Format = None
    options: Annotated[
        dict[str, Any] | None, doc(f"{', '.join(OPTIONS)}, num_predict, num_ctx; others are reported")
    ] = None
    think: Think = None
    keep_alive: KeepAlive = None
    logprobs: Annotated[bool | None, doc("of each token, streamed too")] = None
    top_logprobs: Annotated[
        TopCount | None, doc("with logprobs: true; above 1 with the paged engine only")
    ] = None


class ChatRequest(Shared, kw_only=True):
    messages: Annotated[
        list[Message] | None, doc("the conversation; without one the model is only looked up")
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, doc("functions the model may call")] = None


class GenerateRequest(Shared, kw_only=True):
    prompt: Annotated[str | None, doc("what the user says; without one the model is only looked up")] = None
    system: Annotated[str | None, doc("the system message")] = None
    images: Images = None
    raw: Annotated[bool | None, doc("true: continue the prompt as it is, without a chat template")] = None
    suffix: Annotated[str | None, doc("what follows the answer, of models that fill in the middle")] = None
    template: Annotated[str | None, doc("refused: templates are the graph's")] = None
    context: Annotated[list[int] | None, doc("refused: send the conversation to /api/chat")] = None


class EmbedRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("a graph that serves embeddings")]
    input: Annotated[
        str | list[str] | None, doc("a text, or texts; without one the model is only looked up")
    ] = None
    dimensions: Annotated[Natural | None, doc("shorter vectors, of models that can; 0: whole ones")] = None
    truncate: Annotated[bool | None, doc("false: refuse inputs that are too long")] = None
    options: Annotated[dict[str, Any] | None, doc("reported")] = None
    keep_alive: KeepAlive = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The older form, of one text."""

    model: Annotated[str, doc("a graph that serves embeddings")]
    prompt: Annotated[str | None, doc("a text; without one the model is only looked up")] = None
    options: Annotated[dict[str, Any] | None, doc("reported")] = None
    keep_alive: KeepAlive = None


class OfModel(msgspec.Struct, kw_only=True):
    """The body of show and pull."""

    model: Annotated[str | None, doc("the name of the model")] = None
    name: Annotated[str | None, doc("the older name of the field")] = None
    stream: Annotated[bool | None, doc("false: one object at the end")] = None


class Fields(SamplingFields, kw_only=True):
    """OpenAI's fields, with the format where Ollama has it."""

    form: str | dict[str, Any] | None = None

    @property
    def formats(self) -> list[tuple[str, dict[str, Any] | None]]:
        if isinstance(self.form, dict):
            return [("format", {"type": "json_schema", "schema": self.form})]
        return [("format", {"type": "json_object"} if self.form else None)]


class Options(NamedTuple):
    """The sampling, how many tokens are wanted, the request's context, and options without effect."""

    sampling: Fields
    max_tokens: int | None
    max_context: int | None
    unused: list[str]


def read_options(body: Shared) -> Options:
    """Raises InvalidArgument."""
    if isinstance(body.format, str) and body.format not in ("", "json"):
        raise InvalidArgument.at("format", f'expected "json" or a JSON schema, got {show(body.format)}')
    options = {k: v for k, v in (body.options or {}).items() if v is not None}
    sampling = {
        field: _option(options, name, type_) for name, (field, type_) in OPTIONS.items() if name in options
    }
    if sampling.get("top_k") == 0:
        sampling["top_k"] = -1
    if sampling.get("seed") == ANY_SEED:
        del sampling["seed"]
    length = _option(options, "num_predict", NUM_PREDICT) if "num_predict" in options else None
    context = _option(options, "num_ctx", NUM_CTX) if "num_ctx" in options else None
    effective = {*OPTIONS, "num_predict", "num_ctx"}
    unused = [f"options.{name}" for name in options if name not in effective]
    if body.keep_alive is not None:
        unused.append("keep_alive")
    max_tokens = length if length is not None and length > 0 else None
    fields = Fields(**sampling, stream=body.stream is not False, form=body.format)
    return Options(fields, max_tokens, context or None, unused)


def _option(options: Mapping[str, Any], name: str, type_: Any) -> Any:
    try:
        return msgspec.convert(shape_of(type_).with_whole_numbers(options[name]), type_)
    except msgspec.ValidationError as exc:
        text = without_type(str(exc).replace("Expected", "expected").partition(" - at")[0])
        raise InvalidArgument.at(f"options.{name}", f"{text}, got {show(options[name])}") from None


# The release whose API this is. Editors ask for a minimum: VS Code's Copilot for 0.6.4.
API_VERSION = "0.13.0"
RUNNING = "Ollama is running"  # the whole body of GET /; many clients go on only if it is this one
NEVER = "2318-01-01T00:00:00Z"  # when a model expires that stays


class Details(msgspec.Struct, kw_only=True):
    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int | UnsetType = UNSET
    embedding_length: int | UnsetType = UNSET


class Entry(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: Details


class Tag(Entry, kw_only=True):
    modified_at: str
    capabilities: list[str]


class Tags(msgspec.Struct):
    models: list[Tag]


class LoadedModel(Entry, kw_only=True):
    expires_at: str = NEVER
    size_vram: int = 0
    context_length: int


class Processes(msgspec.Struct):
    models: list[LoadedModel]


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


class Described(msgspec.Struct, frozen=True):
    """One servable, as these answers describe it. Sizes are bytes; `held` is the engine's memory."""

    name: str
    created: int
    identity: str
    size: int
    held: int
    context: int
    dimensions: int  # of its embeddings; 0: it makes none
    format: str
    family: str
    quantization: str
    template: str
    parameters: Mapping[str, Any]
    capabilities: list[str]

    @property
    def details(self) -> Details:
        return Details(
            format=self.format,
            family=self.family,
            families=[self.family] if self.family else [],
            quantization_level=self.quantization,
            context_length=self.context or UNSET,
            embedding_length=self.dimensions or UNSET,
        )

    def entry(self, size: int) -> dict[str, Any]:
        """The fields that tags and ps share."""
        tag = self.name if ":" in self.name else self.name + LATEST
        digest = hashlib.sha256(f"{self.name} {self.identity}".encode()).hexdigest()
        return {"name": tag, "model": tag, "size": size, "digest": digest, "details": self.details}


def tags(models: list[Described]) -> bytes:
    return encode(
        Tags(
            [
                Tag(**m.entry(m.size), modified_at=rfc3339(m.created), capabilities=m.capabilities)
                for m in models
            ]
        )
    )


def processes(models: list[Described]) -> bytes:
    return encode(
        Processes([LoadedModel(**m.entry(m.held or m.size), context_length=m.context) for m in models])
    )


def show_body(model: Described) -> bytes:
    family = model.family or "model"
    info: dict[str, Any] = {"general.architecture": family}
    if model.context:
        info[f"{family}.context_length"] = model.context
    if model.dimensions:
        info[f"{family}.embedding_length"] = model.dimensions
    return encode(
        Shown(
            modelfile=f"# served by ovserve\nFROM {model.name}\n",
            parameters="\n".join(f"{name} {value}" for name, value in model.parameters.items()),
            template=model.template,
            license="",
            details=model.details,
            model_info=info,
            capabilities=model.capabilities,
            modified_at=rfc3339(model.created),
        )
    )


# ---- embeddings: OpenAI's request and answer in between

_embed_decoder = msgspec.json.Decoder(EmbedRequest)
_older_decoder = msgspec.json.Decoder(EmbeddingsRequest)


def embeddings_request(body: bytes, name: str, older: bool) -> tuple[bytes, str, tuple[str, ...]]:
    """Return OpenAI's body for the servable `name`, the model as the client wrote it, and what has no effect.

    The body is empty where no text is sent. Raises InvalidArgument.
    """
    fields: dict[str, Any] = {"model": name, "encoding_format": "float"}
    if older:
        old, unknown = decode_body(body, _older_decoder)
        fields["input"] = old.prompt
        return encode(fields) if old.prompt else b"", old.model, _unused(old, unknown)
    request, unknown = decode_body(body, _embed_decoder)
    fields |= {"input": request.input, "truncate": request.truncate is not False}  # Ollama's default
    if request.dimensions:
        fields["dimensions"] = request.dimensions
    return encode(fields) if request.input else b"", request.model, _unused(request, unknown)


def _unused(request: EmbedRequest | EmbeddingsRequest, unknown: Iterable[str]) -> tuple[str, ...]:
    ignored = [f for f in ("options", "keep_alive") if getattr(request, f, None) is not None]
    return tuple(sorted([*unknown, *ignored]))


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class _Answer(msgspec.Struct):
    data: list[_Row]
    usage: _Usage = _Usage()


def embeddings_answer(body: bytes, model: str, nanoseconds: int, older: bool) -> bytes:
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

"""The bodies of Ollama's chat, generate, embed and show: structs, and the options of sampling.

An option with an effect is a row of OPTIONS, num_predict or num_ctx. Others (num_gpu, mirostat ...) are
about Ollama's own runner; they are accepted and reported, as unknown fields are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ovserve.api.openai.body import show, without_type
from ovserve.api.openai.common import Effort
from ovserve.api.openai.operation import doc
from ovserve.api.openai.sampling import DRY, MAX_STOP, SEED_RANGE, XTC, Penalty, SamplingFields
from ovserve.api.openai.shapes import shape_of
from ovserve.errors import InvalidArgument

LATEST = ":latest"  # the tag of a model that has none

# Option: the field of SamplingFields, and its type.
OPTIONS: dict[str, tuple[str, Any]] = {
    "temperature": ("temperature", Annotated[float, Meta(ge=0, le=2)]),
    "top_p": ("top_p", Annotated[float, Meta(gt=0, le=1)]),
    "top_k": ("top_k", Annotated[int, Meta(ge=-1, le=2**31 - 1)]),
    "min_p": ("min_p", Annotated[float, Meta(ge=0, lt=1)]),
    "seed": ("seed", Annotated[int, Meta(ge=SEED_RANGE[0], le=2**63 - 1)]),
    "repeat_penalty": ("repetition_penalty", Annotated[float, Meta(gt=0, le=1000)]),
    "presence_penalty": ("presence_penalty", Penalty),
    "frequency_penalty": ("frequency_penalty", Penalty),
    **{f.name: (f.name, f.type) for f in msgspec.structs.fields(SamplingFields) if f.name in (*DRY, *XTC)},
    "stop": ("stop", str | Annotated[list[str], Meta(max_length=MAX_STOP)]),
}
NUM_PREDICT = Annotated[int, Meta(ge=-2, le=2**31 - 1)]  # -1 and -2: all the room that there is
NUM_CTX = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # 0: the graph's
ANY_SEED = -1

Format = Annotated[
    str | dict[str, Any] | None,
    doc("json, or a JSON schema that the answer follows"),
]
Think = Annotated[
    bool | Effort | None,
    doc("given to templates that read enable_thinking, thinking or reasoning_effort"),
]
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
        Annotated[int, Meta(ge=0, le=20)] | None,
        doc("with logprobs: true; above 1 with the paged engine only"),
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
    input: Annotated[str | list[str], doc("a text, or texts")]
    dimensions: Annotated[Annotated[int, Meta(ge=1)] | None, doc("shorter vectors, of models that can")] = (
        None
    )
    truncate: Annotated[bool | None, doc("reported: the graph decides")] = None
    options: Annotated[dict[str, Any] | None, doc("reported")] = None
    keep_alive: KeepAlive = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The older form, of one text."""

    model: Annotated[str, doc("a graph that serves embeddings")]
    prompt: Annotated[str, doc("a text")]
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


def plain_name(model: str) -> str:
    """Return the name of a servable for a model with a tag."""
    return model.removesuffix(LATEST)


class Options(NamedTuple):
    """The sampling, how many tokens are wanted, the request's context, and options without effect."""

    sampling: Fields
    max_tokens: int | None
    max_context: int | None
    unused: list[str]


def read_options(body: Shared) -> Options:
    """Raises InvalidArgument."""
    if isinstance(body.format, str) and body.format not in ("", "json"):
        raise InvalidArgument(
            f'format: expected "json" or a JSON schema, got {show(body.format)}', param="format"
        )
    options = {k: v for k, v in (body.options or {}).items() if v is not None}
    sampling = {
        field: _option(options, name, type_) for name, (field, type_) in OPTIONS.items() if name in options
    }
    if sampling.get("top_k") == 0:
        sampling["top_k"] = -1
    if sampling.get("seed") == ANY_SEED:
        del sampling["seed"]
    length = _option(options, "num_predict", NUM_PREDICT) if "num_predict" in options else None
    if length == 0:
        raise InvalidArgument("options.num_predict: expected -1 (all) or at least 1, got 0", param="options")
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
        raise InvalidArgument(
            f"options.{name}: {text}, got {show(options[name])}", param=f"options.{name}"
        ) from None

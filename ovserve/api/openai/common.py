"""Parts of the answers of all endpoints: usage, ids, server-sent events, error bodies."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.operation import IGNORED, Natural, NaturalOrMinusOne, Operation, Override, doc
from ovserve.errors import InvalidArgument
from ovserve.llm.arrangement import EFFORTS, Effort
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, FoldedChoice, Parsed, Part, ToolCall, ToolCallBroken, ToolCallDelta
from ovserve.llm.request import Presentation, ReasoningBudget

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
REPETITION = "repetition_detected"  # the stop reason has the name that vLLM gives it


class CompletionTokensDetails(msgspec.Struct):
    """The fields of predictions are present if tokens were drafted. Rejected tokens cost time, but are not
    part of completion_tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int  # found in the prefix cache, so not computed


class Usage(msgspec.Struct):
    """The details of the prompt are present if the engine has a prefix cache and its hits are known."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


class UsageCounter(msgspec.Struct):
    prompt_tokens: int = 0
    cached_tokens: int | None = None  # of prompt_tokens; None: the engine does not report it
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, parsed: Parsed) -> None:
        self.prompt_tokens += parsed.prompt_tokens + parsed.other_prompt_tokens
        if parsed.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + parsed.cached_tokens
        self.completion_tokens += parsed.tokens
        self.reasoning_tokens += parsed.reasoning_tokens
        self.drafted += parsed.drafted
        self.accepted += parsed.accepted


class UncertainCall:
    """The call of an answer that may still break off. It is certain once another part follows."""

    def __init__(self) -> None:
        self._call: ToolCall | None = None

    def take(self, part: Part) -> ToolCall | None:
        """Return the call that a part makes certain, which is the one before it."""
        if isinstance(part, ToolCallBroken):
            self._call = None
        elif not isinstance(part, ToolCallDelta):
            return self.end()
        elif part.id is not None:
            certain, self._call = self._call, ToolCall(part.id, part.name or "", part.arguments)
            return certain
        else:
            assert self._call is not None, "the first piece of a call has its id"
            self._call.arguments += part.arguments
        return None

    def end(self) -> ToolCall | None:
        call, self._call = self._call, None
        return call


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return arguments as an object; what the model wrote otherwise is kept as text, not lost."""
    try:
        value = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"unparsed": call.arguments}


def usage_of(counted: UsageCounter | Completion) -> Usage:
    cached = counted.cached_tokens
    return Usage(
        counted.prompt_tokens,
        counted.completion_tokens,
        counted.prompt_tokens + counted.completion_tokens,
        CompletionTokensDetails(counted.reasoning_tokens, *predictions(counted)),
        UNSET if cached is None else PromptTokensDetails(cached),
    )


def predictions(counted: UsageCounter | Completion) -> tuple[int | UnsetType, int | UnsetType]:
    """Return accepted and rejected tokens; the latter are unknown if a confidence threshold ends drafts."""
    accepted = counted.accepted if counted.drafted or counted.accepted else UNSET
    return accepted, counted.drafted - counted.accepted if counted.drafted else UNSET


def chunk_usage(presentation: Presentation, meter: UsageCounter) -> Usage | UnsetType | None:
    """Return `usage` of a chunk before the last: absent, null, or the count so far, as requested."""
    if not presentation.include_usage:
        return UNSET
    return usage_of(meter) if presentation.continuous_usage else None


def stop_reason(end: Parsed | FoldedChoice) -> str | UnsetType:
    """Return why a choice ended early, if neither the model nor a limit of the request is the reason."""
    return REPETITION if end.repetitive else UNSET


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def rfc3339(seconds: float) -> str:
    """Return a Unix time as Go's clients and pydantic read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def event(value: Any) -> bytes:
    """One server-sent event. JSON never holds a raw newline, so one data line is enough."""
    return b"data: " + encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One server-sent event under a name of its own."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None
    details: dict[str, Any] | UnsetType = UNSET  # ours: numbers behind the message


class ErrorBody(msgspec.Struct):
    error: ErrorDetail
    message: Annotated[str | UnsetType, doc("of embeddings and ranks, for Cohere's clients")] = UNSET
    detail: Annotated[str | UnsetType, doc("the same, for Voyage's clients")] = UNSET


# The effort and the budget of reasoning: their values and their effect, the same in every API style.


EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort")  # what templates read of it, the latter Kimi K3
SWITCHES = ("enable_thinking", "thinking")
VARIABLES = (*EFFORT_VARIABLES, *SWITCHES)
WITHOUT_REASONING = ("none", "minimal")
BUDGET = "tokens of reasoning, which the paged engine then ends; 0: none"
MESSAGE = "reasoning_budget_message"
Budget = Natural
BudgetOrNone = NaturalOrMinusOne  # -1: no budget
DOC = "given to templates that read it, enable_thinking or thinking"


class ReasoningOptions(msgspec.Struct):
    effort: Annotated[Effort | None, doc(DOC)] = None
    max_tokens: Annotated[Budget | None, doc(BUDGET)] = None
    summary: Annotated[str | None, doc("no effect: thoughts are given as they are")] = None
    generate_summary: Annotated[str | None, doc("no effect: an older name of summary")] = None


def reasoning_budget(
    budgets: Mapping[str, int | None], model: ModelContext, message: str | None = None
) -> tuple[ReasoningBudget | None, list[str]]:
    """Return the budget of the fields in `budgets`, and the fields without effect on this model.

    Raises InvalidArgument for more than one budget."""
    present = {name: tokens for name, tokens in budgets.items() if tokens is not None}
    if len(present) > 1:
        both = " and ".join(f"{name}: {tokens}" for name, tokens in present.items())
        raise InvalidArgument(f"{both} exclude each other", param=next(iter(present)))
    names = [*present, *([MESSAGE] if message is not None else [])]
    if _no_budget(model):
        return None, names
    for tokens in present.values():
        if tokens >= 0:
            return ReasoningBudget(tokens, message or ""), []
    return None, [name for name in names if name == MESSAGE]


def narrow_budget(model: ModelContext, *fields: str) -> dict[str, Override]:
    """Return the change in capabilities for a model whose reasoning cannot be ended."""
    why = _no_budget(model)
    return dict.fromkeys(fields, Override(status=IGNORED, why=why)) if why else {}


def _no_budget(model: ModelContext) -> str:
    if model.decoding != "paged":
        return "only the paged engine ends the reasoning"
    return "" if model.parsers.reasoning else "the graph has no reasoning parser"


def unread_variables(kwargs: dict[str, Any] | None, model: ModelContext) -> list[str]:
    """Return those of the client's chat_template_kwargs that the chat template does not read."""
    assert model.template is not None, "checked before"
    reads, names = model.template.mentions, kwargs or ()
    return [f"chat_template_kwargs.{n}" for n in names if n != "add_generation_prompt" and not reads(n)]


def effort_variables(
    effort: Effort | bool | None,
    model: ModelContext,
    kwargs: dict[str, Any] | None,
    field: str,
    names: Iterable[str] = VARIABLES,
) -> tuple[dict[str, Any], list[str]]:
    """Return the client's chat_template_kwargs with the effort in those of `names` that the template reads,
    as the nearest that it knows, and what has no effect.

    As in OVMS, an effort turns reasoning on, unless the client set the template's switch itself. A boolean
    is for the switch alone; where there is none, False is the least effort.
    """
    assert model.template is not None, "checked before"
    variables, ignored = dict(kwargs or {}), unread_variables(kwargs, model)
    if effort is None:
        return variables, ignored
    names = list(filter(model.template.mentions, names))
    if isinstance(effort, bool):
        names = [name for name in names if name in SWITCHES] or ([] if effort else names)
    if not names:
        return variables, ignored + ([field] if effort or model.parsers.reasoning else [])
    level = "none" if isinstance(effort, bool) else effort
    efforts = model.template.expects.efforts or (level,)
    nearest = min(efforts, key=lambda each: abs(EFFORTS.index(each) - EFFORTS.index(level)))
    if nearest != level and not set(names).isdisjoint(EFFORT_VARIABLES):
        ignored.append(f"{field}:{level}={nearest}")
    for name in names:
        variables.setdefault(name, effort not in (False, *WITHOUT_REASONING) if name in SWITCHES else nearest)
    return variables, ignored


def narrow_effort(model: ModelContext, field: str) -> dict[str, Override]:
    """Return the change in capabilities for a model whose template reads no effort."""
    if model.template is None or any(map(model.template.mentions, VARIABLES)):
        return {}
    why = "this model's chat template reads none of " + ", ".join(VARIABLES)
    return {field: Override(status=IGNORED, why=why)}


# GET models: the list of what is served, and one of it.


STATES = ("LOADING", "AVAILABLE", "FAILED", "END")


class Model(msgspec.Struct, kw_only=True):
    id: Annotated[str, doc("what requests name as their model")]
    object: str = "model"
    created: Annotated[int, doc("unix seconds of the load")]
    owned_by: str = "ovserve"
    parent: Annotated[str | UnsetType, doc("of a LoRA adapter: the model it belongs to")] = UNSET
    max_model_len: Annotated[int | None, doc("tokens of context; null while unknown")] = None
    state: Annotated[  # ovserve.serving.servable.State
        str, doc("of the graph; 503 answers requests in others than AVAILABLE", enum=STATES)
    ]
    state_detail: Annotated[
        str | UnsetType, doc("unloaded: the next request loads it; loading: for requests that wait")
    ] = UNSET
    reason: Annotated[str | UnsetType, doc("why it is not available, where that is known")] = UNSET
    model_version_status: Annotated[
        list[dict[str, Any]] | UnsetType,
        doc("of a plain model asked for by name: its versions, in TensorFlow Serving's form"),
    ] = UNSET


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Model]


OPERATIONS = (
    Operation(
        "GET",
        "/v3/models",
        "The graphs served, those that still load included; in Anthropic's shape with its anthropic-version.",
        answer=ModelList,
    ),
    Operation("GET", "/v3/models/{model}", "One of them, in either shape.", answer=Model),
)


# Half of a character beyond U+FFFF, as JavaScript writes it where a client cut a text within an emoji.
_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
REPLACEMENT = rb"\ufffd"


def with_whole_characters(data: bytes) -> bytes:
    """Return JSON with U+FFFD for each surrogate without its pair. A conversation that has one could never
    be sent again, because no decoder accepts it."""
    if not (b"\\ud" in data or b"\\uD" in data) or not _HALF.search(data):
        return data
    return _ESCAPE.sub(lambda match: REPLACEMENT if match[1] else match[0], data)

"""The endpoint `responses`: a decoded body becomes one GenerateRequest.

The graph answers with response events, which are made of parsed deltas; a unary answer is the fold of them.
Each choice has at most one open item. When the kind of output changes, the item is closed and the next one
takes the next free index. So texts, calls and reasoning never share an index. A call that breaks off is
closed as incomplete and retracted; content that turns out to be reasoning becomes a reasoning item.

Before its first output, the response object repeats the parameters of the request.
"""

from __future__ import annotations

import time
from typing import Any, Literal, cast

import msgspec

from ovserve.api.openai.body import decode_body, refuse_unsupported
from ovserve.api.openai.common import (
    UsageCounter,
    effort_variables,
    new_id,
    predictions,
    reasoning_budget,
    stop_reason,
)
from ovserve.api.openai.logprobs import MISSING_LOGPROB, pictures_of, top_of
from ovserve.api.openai.responses.items import (
    additional_tools,
    as_items,
    check_items,
    loosen_items,
    to_messages,
)
from ovserve.api.openai.responses.objects import (
    GenerationStarted,
    Incomplete,
    InputDetails,
    ItemAdded,
    ItemBecameReasoning,
    ItemDelta,
    ItemDone,
    ItemKind,
    ItemRetracted,
    Logprob,
    OutputDetails,
    Response,
    ResponseCreated,
    ResponseEnded,
    ResponseEvent,
    ResponseEvents,
    TopLogprob,
    Usage,
)
from ovserve.api.openai.responses.request import (
    RESPONSES_UNSUPPORTED,
    DecodedResponses,
    ResponsePresentation,
    ResponseRequest,
    check_response,
    unused_fields,
)
from ovserve.api.openai.responses.tools import clean_tools
from ovserve.api.openai.sampling import check_sampling, idle_fields, to_sampling
from ovserve.api.openai.tools import ClientTool, InputReader, check_model
from ovserve.errors import Internal, InvalidArgument, shortened
from ovserve.llm import output as parts
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Parsed
from ovserve.llm.request import GenerateRequest, TokenLogprob, shown_token


def usage_of(meter: UsageCounter) -> Usage:
    total = meter.prompt_tokens + meter.completion_tokens
    details = OutputDetails(meter.reasoning_tokens, *predictions(meter))
    cached = InputDetails(meter.cached_tokens or 0)
    return Usage(meter.prompt_tokens, cached, meter.completion_tokens, details, total)


ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key",
    "safety_identifier", "user",
)  # fmt: skip


def new_response(request: GenerateRequest, presentation: ResponsePresentation) -> Response:
    """Return the object of a response that has begun: what the request set, and no output yet."""
    decoded, sampling = presentation.decoded, request.sampling
    body = decoded.body
    reasoning = body.reasoning
    text: dict[str, Any] = {"format": (body.text and body.text.format) or {"type": "text"}}
    if body.text and body.text.verbosity:
        text["verbosity"] = body.text.verbosity
    return Response(
        id=request.id,
        created_at=presentation.created,
        status="queued" if body.background else "in_progress",
        model=presentation.model,
        output=[],
        background=bool(body.background),
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning={
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        store=decoded.context.store,
        temperature=sampling.temperature,
        top_p=sampling.top_p if body.top_p is None else body.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        text=text,
        tool_choice=decoded.tools.choice,
        tools=list(decoded.tools.listed),
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        **{name: getattr(body, name) for name in ECHOED},
    )


ID_PREFIX: dict[ItemKind, str] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "local_shell_call": "lsh_",
    "shell_call": "sh_",
    "apply_patch_call": "apc_",
    "mcp_list_tools": "mcpl_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
}
NO_TOOL = ClientTool("")
# The reason of an incomplete response, by the finish reason of a choice.
CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _OpenItem:
    """The item of one choice that still grows; its text is kept here if no one follows the response."""

    def __init__(self, index: int, kind: ItemKind, call: int | None) -> None:
        self.index, self.kind, self.call = index, kind, call
        self.texts: list[str] = []
        self.logprobs: list[Logprob] = []
        self.input = InputReader() if kind == "custom_tool_call" else None


class ResponseEventWriter:
    """An unary answer has one delta per item, because no one reads it while it grows."""

    def __init__(self, request: GenerateRequest) -> None:
        assert isinstance(request.presentation, ResponsePresentation), "the endpoint made it"
        self._request = request
        self._shown = request.presentation
        body = request.presentation.decoded.body
        self._followed = bool(body.stream or body.background)
        self._counter = UsageCounter()
        self._events: list[ResponseEvent] = []
        self._added = 0
        self._open: dict[int, _OpenItem] = {}  # by choice, as are the next three
        self._calls: dict[int, int] = {}
        self._messages: dict[int, list[int]] = {}
        self._answered: set[int] = set()  # choices that have a message or a call
        self._created = self._started = False
        self._cut: Incomplete | None = None  # why a choice is incomplete

    def events(self, parsed: Parsed) -> ResponseEvents | None:
        """The events of one delta, the admission delta first; None for a unary answer in between.

        A packet without events carries the usage, which a stream that fails reports.
        """
        self._counter.add(parsed)
        self._begin(parsed)
        self._grow(parsed)
        if parsed.finish_reason is not None:
            self._finish_choice(parsed, parsed.finish_reason)
        if parsed.last:
            self._finish()
        if not self._events and not self._followed:
            return None
        events, self._events = tuple(self._events), []
        return ResponseEvents(events, usage_of(self._counter))

    def _begin(self, parsed: Parsed) -> None:
        """A response is in progress from the engine's first token on, not from its admission."""
        if not self._created:
            self._created = True
            decoded = self._shown.decoded
            input_ = decoded.stored_input if decoded.context.store else None
            self._events.append(ResponseCreated(new_response(self._request, self._shown), input_))
        if not self._started and (parsed.tokens or parsed.parts or parsed.last):
            self._started = True
            self._events.append(GenerationStarted())

    def _grow(self, parsed: Parsed) -> None:
        choice = parsed.index
        logprobs = self._logprobs(parsed.logprobs) if parsed.logprobs else []
        for part in parsed.parts:
            match part:
                case parts.Content(text):  # the first one has the log-probabilities
                    self._text(choice, "message", text, logprobs)
                    logprobs = []
                case parts.Reasoning(text):
                    self._text(choice, "reasoning", text, [])
                case parts.ToolCallDelta():
                    self._call(choice, part)
                case parts.ToolCallBroken(index):
                    self._retract(choice, index)
                case parts.ContentWasReasoning():
                    self._close(choice, "completed")
                    for message in self._messages.pop(choice, ()):
                        self._events.append(ItemBecameReasoning(message, new_id(ID_PREFIX["reasoning"])))
                    self._answered.discard(choice)

    def _text(self, choice: int, kind: ItemKind, text: str, logprobs: list[Logprob]) -> None:
        open_ = self._open.get(choice)
        if open_ is None or open_.kind != kind:
            open_ = self._next(choice, kind)
        self._add(open_, text, logprobs)

    def _call(self, choice: int, part: parts.ToolCallDelta) -> None:
        if part.id is not None:
            call = self._calls.get(choice, 0)
            self._calls[choice] = call + 1
            self._next_call(choice, call, part.id, part.name or "")
        open_ = self._open.get(choice)
        if open_ is None or open_.call != part.index:
            raise Internal(f"arguments for tool call {part.index}, which is not the open one")
        text = part.arguments if open_.input is None else open_.input.feed(part.arguments)
        if text:
            self._add(open_, text, [])

    def _retract(self, choice: int, call: int) -> None:
        open_ = self._open.get(choice)
        if open_ is not None and open_.call == call:
            self._close(choice, "incomplete")
            self._events.append(ItemRetracted(open_.index))

    def _next_call(self, choice: int, call: int, call_id: str, visible_name: str) -> None:
        tool = self._shown.decoded.tools.names.get(visible_name) or ClientTool(visible_name)
        kind = cast(ItemKind, tool.call)
        if tool.server_label:
            kind = "mcp_approval_request" if tool.approval else "mcp_call"
            tool, call_id = tool._replace(namespace=tool.server_label), ""
        self._next(choice, kind, call, call_id, tool)

    def _next(
        self,
        choice: int,
        kind: ItemKind,
        call: int | None = None,
        call_id: str = "",
        tool: ClientTool = NO_TOOL,
    ) -> _OpenItem:
        """Close the open item and add one."""
        self._close(choice, "completed")
        index, self._added = self._added, self._added + 1
        if kind != "reasoning":
            self._answered.add(choice)
        if kind == "message":
            self._messages.setdefault(choice, []).append(index)
        id_ = new_id(ID_PREFIX[kind])
        self._events.append(ItemAdded(index, kind, id_, call_id, tool.name, tool.namespace))
        open_ = self._open[choice] = _OpenItem(index, kind, call)
        return open_

    def _add(self, open_: _OpenItem, text: str, logprobs: list[Logprob]) -> None:
        if self._followed:
            self._events.append(ItemDelta(open_.index, text, logprobs))
        else:
            open_.texts.append(text)
            open_.logprobs += logprobs

    def _close(self, choice: int, status: Literal["completed", "incomplete"]) -> None:
        open_ = self._open.pop(choice, None)
        if open_ is None:
            return
        if open_.input is not None and (rest := open_.input.finish()):
            self._add(open_, rest, [])
        if open_.texts:
            self._events.append(ItemDelta(open_.index, "".join(open_.texts), open_.logprobs))
        self._events.append(ItemDone(open_.index, status))

    def _finish_choice(self, end: Parsed, reason: str) -> None:
        choice, cut = end.index, CUT.get(reason)
        if cut is not None:
            self._cut = Incomplete(cut, stop_reason(end))
        elif choice not in self._answered:  # an empty answer is an empty message
            self._next(choice, "message")
        self._close(choice, "incomplete" if cut else "completed")

    def _finish(self) -> None:
        if self._cut:
            self._events.append(ResponseEnded("incomplete", incomplete_details=self._cut))
        else:
            self._events.append(ResponseEnded("completed", completed_at=int(time.time())))

    def _logprobs(self, tokens: list[TokenLogprob]) -> list[Logprob]:
        logprobs = []
        for token in tokens:
            value = MISSING_LOGPROB if token.logprob is None else token.logprob
            tops = top_of(token, self._shown.top_logprobs)
            top = [
                TopLogprob(shown_token(one.text, one.utf8, ""), list(one.utf8), one.logprob) for one in tops
            ]
            logprobs.append(Logprob(shown_token(token.text, token.utf8, ""), list(token.utf8), value, top))
        return logprobs


OWN = "ovserve"

_decoder = msgspec.json.Decoder(ResponseRequest)


class Responses:
    name = "responses"

    def decode(self, body: bytes) -> DecodedResponses:
        request, unknown = decode_body(body, _decoder, loosen_items)
        if OWN in unknown:
            raise InvalidArgument.at(OWN, "this field is the server's own")
        refuse_unsupported(unknown, RESPONSES_UNSUPPORTED)
        check_sampling(request)
        check_response(request)
        items = as_items(request.input)
        ignored = [*unknown, *unused_fields(request), *check_items(items), *request.answer_format.unenforced]
        tools = clean_tools(
            request.tools,
            request.tool_choice if request.previous_response_id is None else None,  # it may have the tool
            request.parallel_tool_calls,
            additional=additional_tools(items),
        )
        return DecodedResponses(request, tuple(items), tools, (*sorted(ignored), *tools.ignored))

    def to_request(self, decoded: DecodedResponses, model: ModelContext) -> GenerateRequest:
        body = decoded.body
        if model.template is None:
            raise InvalidArgument("this model has no chat template; use completions", param="input")
        policy = decoded.tools.policy
        unenforced = check_model(policy, model)
        max_tokens = model.max_tokens(body.max_output_tokens, "max_output_tokens")
        images, history = pictures_of(model), decoded.history
        conversation = [*history, *decoded.items, *decoded.done]
        messages = to_messages(conversation, body.instructions, images, len(history))
        if not messages:
            types = ", ".join(name for name in decoded.ignored if ".type=" in name)
            value = shortened(f"none but {types}") if types else "none"
            raise InvalidArgument.at("input", f"expected at least one message, got {value}")
        effort = body.reasoning.effort if body.reasoning else None
        kwargs, ignored = effort_variables(effort, model, body.chat_template_kwargs, "reasoning.effort")
        budget, idle = reasoning_budget(
            {"reasoning.max_tokens": body.reasoning.max_tokens if body.reasoning else None}, model
        )
        return GenerateRequest(
            id=decoded.context.id,
            prompts=(),
            conversation=model.template.conversation(
                messages, kwargs, tools=policy.prompt_tools if policy is not None else None, param="input"
            ),
            add_special_tokens=False,  # the template writes them
            sampling=to_sampling(
                body,
                model,
                max_tokens,
                logprobs=body.wants_logprobs,
                top_logprobs=body.top_logprobs,
                reasoning_budget=budget,
            ),
            presentation=ResponsePresentation(
                endpoint=self.name,
                model=body.model,
                created=decoded.context.created,
                stream=bool(body.stream),
                requested_max_tokens=body.max_output_tokens,
                top_logprobs=body.top_logprobs or 0,
                ignored_params=(*decoded.ignored, *ignored, *idle, *idle_fields(body, model), *unenforced),
                decoded=decoded,
            ),
            reports_admission=True,  # a response is queued, and can be followed, before it says anything
            tools=policy,
            user=body.safety_identifier or body.user or "",
            image_sources=tuple(images.sources),
            file_sources=tuple(images.files),
            parts=lambda: model.parts(messages, kwargs, policy),
        )

    def writer(self, request: GenerateRequest) -> ResponseEventWriter:
        return ResponseEventWriter(request)

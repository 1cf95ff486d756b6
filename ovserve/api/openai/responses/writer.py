"""Writes the answer of a responses request: parsed deltas become items, items become events.

Per choice one item is open at a time; when the kind of output changes it is closed with its done events and
the next one takes the next free output_index. So text before a call, calls, reasoning, in any order and
number, never share an index. The response object that the last event carries is the unary body: what the
events said too early (`llm/output.py`) is right there. A call that broke off is no part of it, its item was
closed as incomplete; content that was thinking is a reasoning item.
"""

from __future__ import annotations

import time

from ovserve.api.openai.common import DONE, UsageCounter, encode, new_id
from ovserve.api.openai.logprobs import MISSING
from ovserve.api.openai.responses.beginning import new_response, usage_of
from ovserve.api.openai.responses.decoded import ResponsePresentation
from ovserve.api.openai.responses.events import Events
from ovserve.api.openai.responses.objects import (
    TERMINAL,
    Failure,
    FunctionCall,
    Incomplete,
    Logprob,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    SummaryText,
    TopLogprob,
)
from ovserve.errors import Internal, InvalidArgument, OvserveError
from ovserve.llm import output as parts
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest, TokenLogprob


class Started(bytes):
    """The first chunk of an answer, which also carries its writer.

    `responses/service.py` asks the writer for what bytes cannot tell: the response so far, and the last words
    of a stream whose engine died or whose client cancelled it.
    """

    writer: ResponseWriter


class _Open:
    """The item of one choice that still grows."""

    def __init__(self, index: int, item: OutputItem, call: int | None = None) -> None:
        self.index, self.item, self.call = index, item, call
        self.pieces: list[str] = []
        self.logprobs: list[Logprob] = []

    def settle(self) -> None:
        """Write what has come into the item."""
        text = "".join(self.pieces)
        self.pieces = [text]
        if isinstance(self.item, FunctionCall):
            self.item.arguments = text
        elif isinstance(self.item, Reasoning):
            self.item.summary[0].text = text
        else:
            self.item.content[0].text = text
            self.item.content[0].logprobs = self.logprobs


class ResponseWriter:
    """`emits` tells whether anybody reads events; a unary answer then gets its body as the last chunk."""

    def __init__(self, request: GenerateRequest) -> None:
        assert isinstance(request.presentation, ResponsePresentation), "the endpoint made it"
        self._shown = request.presentation
        self.decoded = decoded = request.presentation.decoded
        self.emits = bool(decoded.body.stream or decoded.body.background)
        self.response = new_response(request, self._shown)
        self._events = Events()
        self._meter = UsageCounter()
        self._open: dict[int, _Open] = {}
        self._calls: dict[int, int] = {}  # choice to calls begun
        self._answered: set[int] = set()  # choices that have a message or a call
        self._untaken = bytearray()  # written, but perhaps still on its way through the graph
        self._created = self._begun = False
        self._cut = False  # a choice ended by length
        self._broken: set[int] = set()  # indices in the output: calls that were none
        self._said: dict[int, list[int]] = {}  # choice to indices of its messages
        self._thought: set[int] = set()  # indices of messages that were thinking

    # -- the Writer protocol

    def chunk(self, parsed: Parsed) -> bytes:
        out = b""
        first, self._created = not self._created, True
        self._meter.add(parsed)
        if first:
            out += self._lifecycle("created")
            if self.response.status == "queued":
                out += self._lifecycle("queued")
        if not self._begun:
            out += self._begin(parsed)
        out += self._grow(parsed)
        if parsed.finish_reason is not None:
            out += self._finish_choice(parsed.index, parsed.finish_reason)
        if parsed.last:
            out += self._finish()
        self._untaken += out
        if first:
            started = Started(out)
            started.writer = self
            return started
        return out

    def whole(self, completion: Completion) -> bytes:
        raise Internal("a responses request always streams inside the server")

    # -- what the service asks for

    def take(self, chunk: bytes) -> None:
        """The service has this chunk: it will not be lost if the graph is ended now."""
        del self._untaken[: len(chunk)]

    @property
    def ended(self) -> bool:
        return self.response.status in TERMINAL

    def snapshot(self) -> bytes:
        """The response as it is now."""
        for open_ in self._open.values():
            open_.settle()
        return encode(self.response)

    def fail(self, error: OvserveError, shown: str) -> bytes:
        """The last words when the engine, or anything else below, gave up. `shown` is for the client."""
        if not self.ended:
            code = "invalid_prompt" if isinstance(error, InvalidArgument) else "server_error"
            self.response.error = Failure(code, shown)
        return self._end_early("failed", "failed")

    def cancel(self) -> bytes:
        """The last words of a cancelled answer. OpenAI has no event for it: it is incomplete by name."""
        return self._end_early("cancelled", "incomplete")

    # -- steps

    def _begin(self, parsed: Parsed) -> bytes:
        """in_progress is said with the engine's first token, not with the admission."""
        if not (parsed.tokens or parsed.parts or parsed.last):
            return b""
        self._begun = True
        self.response.status = "in_progress"
        return self._lifecycle("in_progress")

    def _grow(self, parsed: Parsed) -> bytes:
        choice, out = parsed.index, b""
        logprobs = self._logprobs(parsed.logprobs) if parsed.logprobs else []
        for part in parsed.parts:
            match part:
                case parts.Content(text):  # the first one has the log-probabilities
                    out += self._text(choice, Message, text, logprobs)
                    logprobs = []
                case parts.Reasoning(text):
                    out += self._text(choice, Reasoning, text, [])
                case parts.ToolCallDelta():
                    out += self._call(choice, part)
                case parts.ToolCallBroken(index):
                    out += self._retract(choice, index)
                case parts.ContentWasReasoning():
                    out += self._close(choice, "completed")
                    self._thought.update(self._said.pop(choice, ()))
                    self._answered.discard(choice)
        return out

    def _text(
        self, choice: int, kind: type[Message] | type[Reasoning], text: str, logprobs: list[Logprob]
    ) -> bytes:
        open_, out = self._open.get(choice), b""
        if open_ is None or not isinstance(open_.item, kind):
            out += self._next(choice, self._reasoning() if kind is Reasoning else self._message())
        return out + self._add(self._open[choice], text, logprobs)

    def _retract(self, choice: int, call: int) -> bytes:
        open_ = self._open.get(choice)
        if open_ is None or open_.call != call:
            return b""
        self._broken.add(open_.index)
        return self._close(choice, "incomplete")

    def _call(self, choice: int, piece: parts.ToolCallDelta) -> bytes:
        out = b""
        if piece.id is not None:
            begun = self._calls[choice] = self._calls.get(choice, 0) + 1
            item = FunctionCall(new_id("fc_"), "in_progress", piece.id, piece.name or "")
            out += self._next(choice, item, call=begun - 1)
        open_ = self._open.get(choice)
        if open_ is None or open_.call != piece.index:
            raise Internal(f"arguments for tool call {piece.index}, which is not the open one")
        return out + (self._add(open_, piece.arguments, []) if piece.arguments else b"")

    def _next(self, choice: int, item: OutputItem, call: int | None = None) -> bytes:
        """Close what is open, and open this."""
        out = self._close(choice, "completed")
        if not isinstance(item, Reasoning):
            self._answered.add(choice)
        self.response.output.append(item)
        if isinstance(item, Message):
            self._said.setdefault(choice, []).append(len(self.response.output) - 1)
        open_ = self._open[choice] = _Open(len(self.response.output) - 1, item, call)
        return out + (self._events.opened(open_.index, item) if self.emits else b"")

    def _add(self, open_: _Open, text: str, logprobs: list[Logprob]) -> bytes:
        open_.pieces.append(text)
        open_.logprobs += logprobs
        return self._events.delta(open_.index, open_.item, text, logprobs) if self.emits else b""

    def _close(self, choice: int, status: str) -> bytes:
        open_ = self._open.pop(choice, None)
        if open_ is None:
            return b""
        open_.settle()
        open_.item.status = status
        return self._events.closed(open_.index, open_.item) if self.emits else b""

    def _finish_choice(self, choice: int, reason: str) -> bytes:
        out = b""
        if reason == "length":
            self._cut = True
        elif choice not in self._answered:  # an answer of nothing is an empty message
            out += self._next(choice, self._message())
        return out + self._close(choice, "incomplete" if reason == "length" else "completed")

    def _finish(self) -> bytes:
        status = "incomplete" if self._cut else "completed"
        if self._cut:
            self.response.incomplete_details = Incomplete("max_output_tokens")
        else:
            self.response.completed_at = int(time.time())
        return self._end(status, status)

    def _end_early(self, status: str, event: str) -> bytes:
        out = bytes(self._untaken)
        self._untaken.clear()
        if self.ended:  # the end is among what was on its way
            return out
        for choice in list(self._open):
            out += self._close(choice, "incomplete")
        return out + self._end(status, event)

    def _end(self, status: str, event: str) -> bytes:
        self.response.status = status
        self.response.output = self._output()
        self.response.usage = usage_of(self._meter)
        return self._lifecycle(event) + DONE if self.emits else encode(self.response)

    def _output(self) -> list[OutputItem]:
        return [
            self._as_thinking(item) if i in self._thought and isinstance(item, Message) else item
            for i, item in enumerate(self.response.output)
            if i not in self._broken
        ]

    def _as_thinking(self, message: Message) -> Reasoning:
        text = message.content[0].text.strip()
        return Reasoning(new_id("rs_"), message.status, [SummaryText(text)])

    def _lifecycle(self, state: str) -> bytes:
        return self._events.lifecycle(state, self.response) if self.emits else b""

    # -- items

    def _message(self) -> Message:
        return Message(new_id("msg_"), "in_progress", [OutputText()])

    def _reasoning(self) -> Reasoning:
        return Reasoning(new_id("rs_"), "in_progress", [SummaryText()])

    def _logprobs(self, tokens: list[TokenLogprob]) -> list[Logprob]:
        made = []
        for token in tokens:
            value = MISSING if token.logprob is None else token.logprob
            utf8 = list(token.utf8)
            top = [TopLogprob(token.text, utf8, value)] if self._shown.top_logprobs else []
            made.append(Logprob(token.text, utf8, value, top))
        return made

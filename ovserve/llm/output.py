"""Parsed output, a tuple of parts per delta, and the fold that makes a whole answer of the stream.

`output_parser.py` makes Parsed of the engine's deltas; the response writer sends it, or folds it.
Unary answers exist only as this fold, so a stream and a whole answer say the same, with one
exception. What was sent before it turned out to be something else cannot be unsent, but a whole answer can
still say it right. Two parts therefore take something back. The fold obeys them; a stream has these rules:

- A call that broke off (`ToolCallBroken`) was begun in the stream and stays there. Its arguments are never
  complete JSON: their last brace is withheld until the call is certain. What the model wrote follows as
  content, and the call does not make the finish reason `tool_calls`. So no one can carry it out, and no text
  is lost. A writer whose clients would carry out half a call holds the whole of it until it is certain.
- Content that was reasoning after all (`ContentWasReasoning`, an end tag without a start) stays content.
- A writer whose last event carries the whole answer puts the fold's form there.

A call that a token limit or a stop string cut is not a broken one. What came of it stays, in both forms, and
the finish reason is `length` or `stop`. Of a call whose name had not come, nothing is shown.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

import msgspec

from ovserve.llm.parsing.output import Content as Content
from ovserve.llm.parsing.output import ContentWasReasoning as ContentWasReasoning
from ovserve.llm.parsing.output import Reasoning as Reasoning
from ovserve.llm.parsing.output import ToolCallBroken as ToolCallBroken
from ovserve.llm.request import TokenLogprob


class ToolCallDelta(msgspec.Struct, gc=False):
    """A chunk of a tool call: `id` and `name` come once, in its first chunk; arguments concatenate."""

    index: int  # of the call within its choice
    id: str | None = None
    name: str | None = None
    arguments: str = ""  # JSON text, unfinished until the call's last chunk


Part = Content | Reasoning | ToolCallDelta | ToolCallBroken | ContentWasReasoning


class Parsed(msgspec.Struct, gc=False):
    """One delta after parsing: its parts in the order of the text, and counters passed through.

    All text of the model is in `parts` and `logprobs`; `map_text` rewrites it.
    """

    parts: tuple[Part, ...] = ()
    tokens: int = 0
    finish_reason: str | None = None  # "tool_calls" when the choice ended by itself with calls
    prompt_tokens: int = 0  # > 0 only in the admission delta, the first of a stream
    max_tokens: int = 0
    index: int = 0  # of the choice
    logprobs: list[TokenLogprob] | None = None  # of the delta's tokens, those of markup included
    reasoning_tokens: int = 0  # of `tokens`; below 0 when earlier ones turned out not to be reasoning
    last: bool = False  # the answer is complete
    drafted: int = 0
    accepted: int = 0
    # Of prompt_tokens, in the prefix cache; None: the engine does not report it.
    cached_tokens: int | None = None
    stop_string: str | None = None  # the stop string that ended the choice
    repetitive: bool = False  # the choice was ended because it only repeated itself
    other_prompt_tokens: int = 0  # of prompts that other models of the graph worked on for this answer

    @property
    def content(self) -> str:
        """All content of this delta, joined."""
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is Content:  # nearly every delta
            return parts[0].text
        return "".join([part.text for part in parts if isinstance(part, Content)])

    @property
    def reasoning(self) -> str:
        """All reasoning of this delta, joined."""
        return "".join([part.text for part in self.parts if isinstance(part, Reasoning)])

    @property
    def tool_calls(self) -> tuple[ToolCallDelta, ...]:
        return tuple([part for part in self.parts if isinstance(part, ToolCallDelta)])

    def map_text(
        self, change: Callable[[str], str], *, arguments: Callable[[str], str] | None = None
    ) -> Parsed:
        """Return this packet with `change` applied to all text that the model wrote.

        That is content, reasoning, the arguments of calls, and the tokens of logprobs. `arguments`, where
        given, is applied to the arguments instead, which must stay JSON. Names and ids of calls stay: clients
        find the tool and match its result by them. Text that becomes empty is left out.

        Both are called with one part's text at a time, in order, and must depend on nothing else: a word may
        be cut by the end of a packet. A calculator that holds text back for that reason must also hold back,
        or drop, the logprobs of that text.
        """
        parts = tuple([new for part in self.parts if (new := _changed(part, change, arguments or change))])
        logprobs = map_logprobs(self.logprobs, change) if self.logprobs else None
        return msgspec.structs.replace(self, parts=parts, logprobs=logprobs)


def _changed(part: Part, change: Callable[[str], str], arguments: Callable[[str], str]) -> Part | None:
    match part:
        case Content(text):
            return Content(new) if (new := change(text)) else None
        case Reasoning(text):
            return Reasoning(new) if (new := change(text)) else None
        case ToolCallDelta(index, id, name, text):
            new = arguments(text) if text else ""
            return ToolCallDelta(index, id, name, new) if new or id is not None else None
    return part


class ToolCall(msgspec.Struct):
    id: str
    name: str
    arguments: str  # JSON text as the model gave it


class ToolResult(msgspec.Struct, frozen=True):
    """One call that the server has run. `call.arguments` is the model's JSON text."""

    call: ToolCall
    output: str
    seconds: float
    failed: bool = False


class FoldedChoice:
    """One choice of a whole answer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self.repetitive = False
        self.logprobs: list[TokenLogprob] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._taken_back = False
        self._calls: dict[int, ToolCall] = {}
        self._arguments: dict[int, list[str]] = {}
        self._order: list[str | int] = []  # content, and calls by index, in their order

    def add(self, parsed: Parsed) -> None:
        for part in parsed.parts:
            self._add_part(part)
        if parsed.logprobs:
            self.logprobs += parsed.logprobs
        if parsed.finish_reason is not None:
            self.finish_reason, self.stop_string = parsed.finish_reason, parsed.stop_string
            self.repetitive = parsed.repetitive

    def _add_part(self, part: Part) -> None:
        match part:
            case Content(text):
                self._content.append(text)
                self._order.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case ToolCallDelta(index, id, name, arguments):
                if id is not None:
                    self._calls[index] = ToolCall(id, name or "", "")
                    self._arguments[index] = []
                    self._order.append(index)
                self._arguments[index].append(arguments)
            case ToolCallBroken(index):
                del self._calls[index], self._arguments[index]
            case ContentWasReasoning():
                self._reasoning += self._content
                self._content, self._order = [], []
                self._taken_back = True

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        text = "".join(self._reasoning)
        return text.strip() if self._taken_back else text

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [self._call(index) for index in self._calls]

    @property
    def parts(self) -> list[str | ToolCall]:
        """Content and calls in the order of the text."""
        parts: list[str | ToolCall] = []
        for part in self._order:
            if isinstance(part, int):
                parts += [self._call(part)] if part in self._calls else []
            elif parts and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
        return parts

    def _call(self, index: int) -> ToolCall:
        call = self._calls[index]
        return ToolCall(call.id, call.name, "".join(self._arguments[index]))


class Completion:
    """A whole answer: the sum of its stream."""

    def __init__(self) -> None:
        self._choices: dict[int, FoldedChoice] = {}
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.max_tokens = 0  # what the engine had room for, from the admission

    def add(self, parsed: Parsed) -> None:
        self.completion_tokens += parsed.tokens
        self.prompt_tokens += parsed.prompt_tokens + parsed.other_prompt_tokens
        if parsed.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + parsed.cached_tokens
        self.reasoning_tokens += parsed.reasoning_tokens
        self.drafted += parsed.drafted
        self.accepted += parsed.accepted
        self.max_tokens = parsed.max_tokens or self.max_tokens
        choice = self._choices.get(parsed.index)
        if choice is None:
            choice = self._choices[parsed.index] = FoldedChoice(parsed.index)
        choice.add(parsed)

    @property
    def choices(self) -> list[FoldedChoice]:
        """Return the choices by index, from 0; there is always one."""
        return [self._choices[i] for i in sorted(self._choices)]


def map_logprobs(tokens: list[TokenLogprob], change: Callable[[str], str]) -> list[TokenLogprob] | None:
    """Return the tokens with `change` applied to their text; None if no text is left.

    Where `change` does the same to each token as to all of them together, each token keeps its own entry.
    Otherwise it changed text across a border of tokens (a name of two tokens became one mask), and one entry
    takes the place of all, with the log-probability of all. Bytes follow the text, also where they are a part
    of a character only: `change` has not seen that character, so they must not show it.
    """
    runs = list(_runs(tokens))
    mapped = [(change(text), text, run) for text, run in runs]
    whole = change("".join([text for text, _ in runs]))
    if "".join([new for new, _, _ in mapped]) != whole:
        return [_entry(whole, tokens)] if whole else None
    entries: list[TokenLogprob] = []
    for new, text, run in mapped:
        if new == text and all(change(token.text) == token.text for token in run) and "\ufffd" not in text:
            entries += with_top(run, lambda text: change(text) == text)
        elif new:
            entries.append(_entry(new, run))
    return entries or None


def _runs(tokens: list[TokenLogprob]) -> Iterator[tuple[str, list[TokenLogprob]]]:
    """Yield runs of tokens that spell whole characters, with their text. One token may hold half of one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, run = "", []
    for token in tokens:
        text += decoder.decode(token.utf8)
        run.append(token)
        if not decoder.getstate()[0]:
            yield text, run
            text, run = "", []
    if run:
        yield text + decoder.decode(b"", True), run


def with_top(tokens: list[TokenLogprob], is_visible: Callable[[str], bool]) -> list[TokenLogprob]:
    """Return the tokens with those others at their places whose text `is_visible`."""
    return [
        msgspec.structs.replace(token, top=tuple(one for one in token.top if is_visible(one.text)))
        if token.top
        else token
        for token in tokens
    ]


def _entry(text: str, run: list[TokenLogprob]) -> TokenLogprob:
    logprobs = [token.logprob for token in run if token.logprob is not None]
    return TokenLogprob(text, text.encode(), sum(logprobs) if len(logprobs) == len(run) else None)

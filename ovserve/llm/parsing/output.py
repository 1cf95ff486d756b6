"""The output of parsing: events, with the white space rules and call bookkeeping that every dialect shares.

Rules of white space: reasoning is stripped at both ends, newlines
between reasoning and content go, blanks around calls go unless text stands on both sides, nothing else is
touched.
"""

from __future__ import annotations

import random
import string
from itertools import groupby

import msgspec

from ovserve.llm.parsing.cursor import Cursor


class Content(msgspec.Struct, frozen=True, gc=False):
    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """Sent once per index; indices count from 0 in order of appearance."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """A chunk of the arguments' JSON text; the joined chunks of one index are the arguments."""

    index: int
    text: str


class ToolCallBroken(msgspec.Struct, frozen=True, gc=False):
    """The call of this index turned out not to be a call. Its raw text follows as Content (or was a list
    item)."""

    index: int


class ContentWasReasoning(msgspec.Struct, frozen=True, gc=False):
    """An end-of-reasoning tag without a start: all content so far was reasoning."""


Event = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallBroken | ContentWasReasoning


_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 9  # Mistral's templates require exactly nine alphanumerics; they suit all others


class Output:
    """Collects events of one answer."""

    def __init__(self, cur: Cursor, *, hold_space: bool) -> None:
        self._cur = cur
        self._events: list[Event] = []
        self._hold_space = hold_space  # white space waits: a call may follow
        self._space: list[str] = []
        self._after_reasoning = False
        self.after_call = False  # only white space came since the last call
        self._reasoning_space: list[str] = []
        self._content_break = self._reasoning_break = False
        self._ids: set[str] = set()
        self._index = -1
        self._before_call: tuple[list[str], bool, bool] = ([], False, False)
        self.call_open = False  # the last one is not certain yet: more of it, or ToolCallBroken, follows
        self.arguments_complete = False  # of the open call; the rest of its object may be missing
        self.cut_call = False  # the answer ended inside a call that was announced
        self.committed = 0  # text before this offset has become calls and is not read again
        self.has_content = False  # anything but white space
        self.has_reasoning = False
        self.has_call = False  # a started one counts
        self._last_char = self.last_thought = ""
        self._thought = 0  # characters of completed reasoning, tags included
        self._thinking_since: int | None = None

    @property
    def fresh(self) -> bool:
        """Return whether nothing of the answer proper has arrived yet."""
        return not self.has_content and not self.has_call

    @property
    def last_char(self) -> str:
        """Return the last character of the content, withheld white space included."""
        return self._space[-1][-1] if self._space else self._last_char

    # -- text

    def content(self, text: str) -> None:
        if not self._holds:
            if text:
                self._put_content(text)
            return
        body = text.rstrip()
        tail = text[len(body) :]
        if body:
            whole = "".join(self._space) + body
            self._space = []
            if self._after_reasoning:
                self._after_reasoning = False
                blank = whole[: len(whole) - len(whole.lstrip())]
                whole = whole[max(blank.rfind("\n"), blank.rfind("\r")) + 1 :]
            self._put_content(whole)
        if tail and self._holds:
            self._space.append(tail)
        elif tail:
            self._put_content(tail)

    @property
    def _holds(self) -> bool:
        """Return whether white space is withheld until the next text."""
        return self._hold_space or self._after_reasoning or self.after_call

    def _put_content(self, text: str) -> None:
        if self._content_break and self.has_content:
            text = "\n" + text
        self._content_break = False
        if not text.isspace():
            self.has_content = True
            self.after_call = False
        self._last_char = text[-1]
        self._events.append(Content(text))

    def reasoning(self, text: str) -> None:
        self.last_thought = text[-1:] or self.last_thought
        body = text.rstrip()
        if body:
            lead = "".join(self._reasoning_space)
            self._reasoning_space.clear()
            if not self.has_reasoning:
                body = body.lstrip()
            elif self._reasoning_break:
                body = "\n" + body.lstrip()
            else:
                body = lead + body
            self.has_reasoning = True
            self._reasoning_break = False
            self._events.append(Reasoning(body))
        if len(text) > len(text.rstrip()) and self.has_reasoning:
            self._reasoning_space.append(text[len(text.rstrip()) :])

    def begin_thinking(self, since: int) -> None:
        """Treat the text from this offset on as reasoning, until `end_thinking`."""
        self._thinking_since = since

    def end_thinking(self) -> None:
        if self._thinking_since is not None:
            self._thought += self._cur.offset - self._thinking_since
            self._thinking_since = None

    def thought(self, come: int) -> int:
        """Return the characters of reasoning among the `come` ones that have arrived."""
        return self._thought + (0 if self._thinking_since is None else come - self._thinking_since)

    def end_reasoning(self) -> None:
        self.end_thinking()
        self._reasoning_space.clear()
        self._space.clear()
        self._after_reasoning = True

    def new_message(self) -> None:
        """Begin a message (framed dialects): a newline joins texts of one kind from different messages."""
        self._content_break = self._reasoning_break = True
        self._reasoning_space.clear()

    def content_was_reasoning(self) -> None:
        self._events.append(ContentWasReasoning())
        self.has_content = False
        self.has_reasoning = True
        self.begin_thinking(0)
        self.end_reasoning()

    # -- calls

    def start_call(self, name: str, id: str | None = None) -> None:
        self._before_call = (self._space, self.after_call, self._after_reasoning)
        # Blanks before a call are sent only if text follows it, to separate the two texts.
        self._space = self._space.copy() if self.has_content and not self._after_reasoning else []
        self.after_call = self.has_call = self.call_open = True
        self.arguments_complete = False
        self._after_reasoning = False
        if not id or id in self._ids:
            id = self._new_id()
        self._ids.add(id)
        self._index += 1
        self._events.append(ToolCallStart(self._index, id, name))

    def arguments(self, text: str) -> None:
        if text:
            self._events.append(ToolCallArguments(self._index, text))

    def end_call(self) -> None:
        self.call_open = False
        self.commit()

    def cut(self) -> None:
        """End the answer inside a call. An unannounced call is dropped."""
        self.cut_call = self.call_open and not self.arguments_complete
        self.end_call()

    def commit(self) -> None:
        """Mark the text read so far as consumed. `end_call` does it; repeat it after a closing tag if more
        may follow."""
        self.committed = self._cur.offset

    def break_call(self) -> None:
        """Retract an open call, if there is one; its raw text follows as content."""
        if self.call_open:
            self.call_open = False
            self._space, self.after_call, self._after_reasoning = self._before_call
            self._events.append(ToolCallBroken(self._index))

    def _new_id(self) -> str:
        while (id := "".join(random.choices(_ALPHABET, k=_ID_LENGTH))) in self._ids:
            pass
        return id

    # -- out

    def finish(self) -> None:
        """End the text: white space withheld for a call becomes content."""
        if self._space and not self.after_call and not self._after_reasoning:
            self._put_content("".join(self._space))
        self._space.clear()

    def drain(self) -> list[Event]:
        """Return the events since the last drain; neighbours of one kind are joined."""
        events, self._events = self._events, []
        if len(events) < 2:
            return events
        joined: list[Event] = []
        for _, run in groupby(events, key=_kind):
            group = list(run)
            first = group[0]
            if len(group) > 1 and isinstance(first, Content | Reasoning | ToolCallArguments):
                texts = (event.text for event in group if isinstance(event, type(first)))
                joined.append(msgspec.structs.replace(first, text="".join(texts)))
            else:
                joined += group
        return joined


def _kind(event: Event) -> tuple[type, int]:
    return type(event), event.index if isinstance(event, ToolCallArguments) else 0

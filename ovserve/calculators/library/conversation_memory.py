"""ConversationMemoryCalculator: the earlier turns of conversations, for graphs whose clients send one turn.

| port | type | |
|---|---|---|
| output side packet `MEMORY` | `ConversationMemory` | to the node that generates |

Options bound it. Of `max_conversations` (1000) the least recently used goes first. Of a conversation's
`max_turns` (20) and `max_characters` (8000) the oldest turns go first. `ttl_seconds` (1800) after its last
turn it is dropped. Conversations belong to the key that began them. They are in memory: a reload of the
graph forgets them.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from ovserve.access import current_request
from ovserve.graph import Calculator, Context, LoadContext, SideOutput, calculator


class MemoryOptions(msgspec.Struct, frozen=True):
    max_conversations: Annotated[int, msgspec.Meta(ge=1)] = 1000
    max_turns: Annotated[int, msgspec.Meta(ge=1)] = 20
    max_characters: Annotated[int, msgspec.Meta(ge=1)] = 8000
    ttl_seconds: Annotated[float, msgspec.Meta(gt=0)] = 1800.0


class Turn(NamedTuple):
    question: str
    answer: str

    @property
    def size(self) -> int:
        return len(self.question) + len(self.answer)


class _Conversation:
    def __init__(self) -> None:
        self.turns: deque[Turn] = deque()
        self.size = 0  # characters
        self.used = 0.0

    def add(self, turn: Turn, options: MemoryOptions) -> None:
        self.turns.append(turn)
        self.size += turn.size
        while len(self.turns) > options.max_turns or self.size > options.max_characters:
            self.size -= self.turns.popleft().size


class ConversationMemory:
    """The conversations of a loaded graph. Ids are those of the current request's key."""

    def __init__(self, options: MemoryOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options, self._clock = options, clock
        self._known: OrderedDict[tuple[str, str], _Conversation] = OrderedDict()

    def facts(self) -> dict[str, object]:
        self._expire()
        return {"conversations": len(self._known)}

    def turns(self, id_: str) -> tuple[Turn, ...]:
        """Return the turns of a conversation, the oldest first; none of one that is unknown or expired."""
        self._expire()
        conversation = self._known.get(_key(id_))
        return tuple(conversation.turns) if conversation is not None else ()

    def add(self, id_: str, question: str, answer: str) -> None:
        """Append a turn. One longer than `max_characters` is not kept."""
        self._expire()
        if len(question) + len(answer) > self._options.max_characters:
            return
        key = _key(id_)
        conversation = self._known.setdefault(key, _Conversation())
        conversation.add(Turn(question, answer), self._options)
        conversation.used = self._clock()
        self._known.move_to_end(key)
        if len(self._known) > self._options.max_conversations:
            self._known.popitem(last=False)

    def _expire(self) -> None:
        """Drop the expired ones, which are the first: each turn moves its conversation to the end."""
        until = self._clock() - self._options.ttl_seconds
        while self._known and next(iter(self._known.values())).used < until:
            self._known.popitem(last=False)


def _key(id_: str) -> tuple[str, str]:
    return current_request().caller.name, id_


@calculator("ConversationMemoryCalculator")
class ConversationMemoryNode(Calculator):
    options_type = MemoryOptions

    memory = SideOutput("MEMORY", ConversationMemory)

    @classmethod
    def load(cls, lc: LoadContext) -> ConversationMemory:
        return ConversationMemory(lc.options(MemoryOptions))

    def open(self, cc: Context) -> None:
        cc.set_side(self.memory, cc.state)

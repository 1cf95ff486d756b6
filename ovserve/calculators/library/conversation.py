"""RequestParser in two steps, for nodes that change a conversation before the chat template renders it.

| calculator | input | output |
|---|---|---|
| ConversationCalculator | `DECODED` `DecodedRequest` | `CONVERSATION` `GenerateRequest` |
| PromptRendererCalculator | `CONVERSATION` `GenerateRequest` | `GENERATE` `GenerateRequest` |

Both take the side packet `LLM_NODE_RESOURCES`. A request on `CONVERSATION` has a `conversation`, or `prompts`
where the client sent a prompt.

PromptInsertion: text that goes into the prompt, between the conversation and its rendering.

    @calculator("TodayCalculator")
    class Today(PromptInsertion):
        def insert(self, cc: Context, question: str) -> str:
            return f"Today is {date.today()}."

| port | type | |
|---|---|---|
| input `CONVERSATION` | `GenerateRequest` | from ConversationCalculator or another such node |
| output `CONVERSATION` | `GenerateRequest` | to PromptRendererCalculator or another such node |
| side packet `LLM_NODE_RESOURCES` | `LlmResources` | the model that answers |

The text goes to the end of the system message, which is made if there is none; before a plain prompt.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

import msgspec

from ovserve.access import current_request
from ovserve.calculators.library.messages import question, with_system_text
from ovserve.graph import Calculator, Context, Input, LoadContext, Output, SideOutput, SidePacket, calculator
from ovserve.graph.options import awaited, must_override
from ovserve.kinds.text.node import DecodedRequest
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.request import GenerateRequest


@calculator("ConversationCalculator")
class ConversationNode(Calculator):
    runs_on = "loop"

    decoded = Input("DECODED", DecodedRequest)
    conversation = Output("CONVERSATION", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def process(self, cc: Context) -> None:
        request = cc[self.decoded]
        if request is not None:
            cc.send(self.conversation, await request.to_request(cc[self.llm]))


@calculator("PromptRendererCalculator")
class PromptRenderer(Calculator):
    runs_on = "loop"

    conversation = Input("CONVERSATION", GenerateRequest)
    generate = Output("GENERATE", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def process(self, cc: Context) -> None:
        request = cc[self.conversation]
        if request is not None:
            cc.send(self.generate, await cc[self.llm].rendered(request))


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
    """The earlier turns of conversations, for graphs whose clients send one turn.

    | port | type | |
    |---|---|---|
    | output side packet `MEMORY` | `ConversationMemory` | to the node that generates |

    Options bound it. Of `max_conversations` (1000) the least recently used goes first. Of a conversation's
    `max_turns` (20) and `max_characters` (8000) the oldest turns go first. `ttl_seconds` (1800) after its
    last turn it is dropped. Conversations belong to the key that began them. They are in memory: a reload of
    the graph forgets them.
    """

    options_type = MemoryOptions

    memory = SideOutput("MEMORY", ConversationMemory)

    @classmethod
    def load(cls, lc: LoadContext) -> ConversationMemory:
        return ConversationMemory(lc.options(MemoryOptions))

    def open(self, cc: Context) -> None:
        cc.set_side(self.memory, cc.state)


class PromptInsertion(Calculator):
    """Base of nodes that insert text. Override `insert`."""

    runs_on = "loop"

    before = Input("CONVERSATION", GenerateRequest)
    after = Output("CONVERSATION", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    @must_override
    def insert(self, cc: Context, question: str) -> str | Awaitable[str]:
        """Return the text for a question: the last user message, or the prompt. "" inserts nothing."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        request = cc[self.before]
        if request is not None:
            llm = cc[self.llm]
            text = await awaited(self.insert(cc, await question(llm, request)))
            cc.send(self.after, await with_system_text(llm, request, text) if text else request)

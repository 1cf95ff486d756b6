"""Requests with images are taken in one between two steps, so that many of them do not silence the others."""

from __future__ import annotations

import asyncio
from typing import Any

from conftest import Script

from ovserve.engine.client.process import EngineProcess
from ovserve.engine.protocol.messages import Abort, Accepted, Add, Failed, Steps, Stop
from ovserve.engine.protocol.specs import ScriptSpec
from ovserve.engine.worker.admission_queue import HOLD_SECONDS, PATIENCE_SECONDS, AdmissionQueue
from ovserve.llm.images import Image, tag
from ovserve.llm.request import Sampling


class Roomy:
    """An engine whose next step has room for so many prompts more."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.ahead: set[str] = set()  # prompts that may overtake
        self.empty = False

    def encode_prompts(self, requests: list[Add]) -> dict[int, str]:
        return {request.id: f"encoded {request.id}" for request in requests}

    def can_schedule(self, encoded: str) -> bool:
        assert encoded.startswith("encoded ")
        return self.room > 0

    def overtakes(self, encoded: str) -> bool:
        return encoded in self.ahead

    def can_schedule_first(self, encoded: str) -> bool:
        assert encoded.startswith("encoded ")
        return self.empty


def text(id_: int) -> Add:
    return Add(id_, "hello", False, Sampling())


def seeing(id_: int) -> Add:
    return Add(id_, f"{tag(0)}hello", False, Sampling(), (Image(1, 1, bytes(3)),))


def test_one_in_the_order_of_arrival_and_all_else_at_once() -> None:
    queue, first, second = AdmissionQueue(Roomy()), seeing(1), seeing(2)
    queue.begin()
    assert [*queue.take([first, text(3), second, text(4)])] == [text(3), text(4), first]
    assert queue.waiting
    assert [*queue.take([text(5)])] == [text(5)]  # still before the same step
    queue.begin()
    assert [*queue.take([])] == [second]
    assert not queue.waiting


def test_who_leaves_while_waiting_is_never_taken() -> None:
    queue, first, last = AdmissionQueue(Roomy()), seeing(1), seeing(3)
    queue.begin()
    assert [*queue.take([first, seeing(2), last, Abort(2)])] == [Abort(2), first]
    queue.begin()
    assert [*queue.take([Stop()])] == [Stop(), last]


def take(queue: AdmissionQueue, engine: Roomy, *messages: Any) -> list[Any]:
    """Each that is taken fills the step a little more."""
    taken = []
    for message in queue.take(messages):
        taken.append(message)
        engine.room -= isinstance(message, Add)
    return taken


def test_prompts_that_the_step_has_no_room_for_wait_in_their_order() -> None:
    engine = Roomy(2)
    queue = AdmissionQueue(engine)
    assert take(queue, engine, *(text(n) for n in range(1, 6))) == [text(1), text(2)]
    assert queue.waiting
    assert queue.full
    engine.room = 2
    assert take(queue, engine, text(6)) == [text(3), text(4)]  # the newcomer does not overtake
    assert [queue.encoded(text(3)), queue.encoded(text(3))] == ["encoded 3", None]
    engine.room = 9
    assert take(queue, engine) == [text(5), text(6)]
    assert not queue.full


def test_a_prompt_that_may_overtake_passes_those_that_wait() -> None:
    engine = Roomy(1)
    queue = AdmissionQueue(engine)
    engine.ahead = {"encoded 3", "encoded 5"}
    assert take(queue, engine, *(text(n) for n in range(1, 5))) == [text(1), text(3)]
    assert take(queue, engine, text(5), text(6)) == [text(5)]
    engine.room = 3
    assert take(queue, engine) == [text(2), text(4), text(6)]


def test_who_leaves_while_there_is_no_room_is_never_taken() -> None:
    engine = Roomy(0)
    queue = AdmissionQueue(engine)
    assert take(queue, engine, text(1), text(2)) == []
    assert take(queue, engine, Abort(1), Stop()) == [Abort(1), Stop()]
    engine.room = 1
    assert take(queue, engine) == [text(2)]


def scored(id_: int) -> Add:
    return Add(id_, "hello", False, Sampling(echo=True, logprobs=True))


def test_what_has_to_be_first_waits_for_an_empty_engine_and_others_behind_it() -> None:
    engine, now = Roomy(), 0.0
    queue = AdmissionQueue(engine, lambda: now)
    assert take(queue, engine, text(1), scored(2), text(3), seeing(4)) == [text(1)]
    assert queue.waiting
    assert take(queue, engine, scored(5)) == []
    engine.empty = True
    assert take(queue, engine, text(6)) == [scored(2), scored(5), text(3), text(6), seeing(4)]
    assert not queue.waiting


def test_what_came_before_does_not_wait_for_it() -> None:
    engine = Roomy(1)
    queue = AdmissionQueue(engine, lambda: 0.0)
    assert take(queue, engine, text(1), text(2), scored(3), text(4)) == [text(1)]
    engine.room = 9
    assert take(queue, engine) == [text(2)]
    assert take(queue, engine, Abort(3)) == [Abort(3)]
    assert take(queue, engine) == [text(4)]


def test_others_are_held_for_a_while_only_and_it_waits_for_a_while_only() -> None:
    engine, now = Roomy(), 0.0
    queue = AdmissionQueue(engine, lambda: now)
    assert take(queue, engine, scored(1), text(2)) == []
    now = HOLD_SECONDS - 1
    assert take(queue, engine) == []
    now = HOLD_SECONDS
    assert take(queue, engine) == [text(2)]
    now = PATIENCE_SECONDS - 1
    assert take(queue, engine) == []
    now = PATIENCE_SECONDS
    assert take(queue, engine) == [scored(1)]  # for the engine to refuse it
    assert not queue.waiting


async def test_a_stream_goes_on_between_two_images(script: Script) -> None:
    """By the order of the words of an engine process whose every step says something."""
    words: list[Any] = []
    heard = asyncio.Event()

    def on_word(word: Any) -> None:
        words.append(word)
        heard.set()

    async def until(done: Any) -> None:
        async with asyncio.timeout(60):
            while not done():
                heard.clear()
                await heard.wait()

    def admitted() -> list[int]:
        return [word.id for word in words if isinstance(word, Accepted) and word.id > 1]

    process = EngineProcess(on_word, lambda: None)
    replies = {"match": "endless", "text": "word ", "repeat": 0}, {"text": "a b c"}
    await process.start(ScriptSpec(script(*replies, vision=True)), ready_timeout=100.0)
    try:
        process.send(Add(1, "endless", False, Sampling()))
        await until(lambda: any(isinstance(word, Steps) and word.items for word in words))
        words.clear()
        for message in (*(seeing(n) for n in range(2, 8)), Abort(7)):
            process.send(message)
        await until(lambda: len(admitted()) == 5)
        assert admitted() == [2, 3, 4, 5, 6]
        spoken = 0  # tokens of the stream since the last image
        for word in words:
            assert not isinstance(word, Failed)
            if isinstance(word, Steps):
                spoken += sum(item.tokens for item in word.items if item.id == 1)
            elif isinstance(word, Accepted):
                assert word.id == 2 or spoken
                spoken = 0
    finally:
        await process.stop(5.0)

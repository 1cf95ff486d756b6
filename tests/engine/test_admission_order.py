"""Which waiting requests the engine takes between two steps, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from conftest import Script

from ovserve.engine.client.process import EngineProcess
from ovserve.engine.protocol.messages import Abort, Accepted, Add, Failed, Steps, Stop
from ovserve.engine.protocol.specs import ScriptSpec
from ovserve.engine.worker.steps import AdmissionQueue
from ovserve.llm.images import Image, tag
from ovserve.llm.request import Sampling


class Roomy:
    """An engine whose next step has room for so many prompts more."""

    def __init__(self, room: int = 100) -> None:
        self.room = room

    def encode_prompts(self, requests: list[Add]) -> dict[int, str]:
        return {request.id: f"encoded {request.id}" for request in requests}

    def can_schedule(self, request: Add, encoded: str) -> bool:
        assert encoded == f"encoded {request.id}"
        return self.room > 0


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


def test_lines_of_batches_wait_behind_all_other_prompts() -> None:
    queue = AdmissionQueue(engine := Roomy(0))
    lines = [msgspec.structs.replace(text(id_), batch=True) for id_ in (1, 2)]
    queue.begin()
    assert [*queue.take([*lines, text(3)])] == []
    assert [*queue.take([text(4)])] == []
    engine.room = 4
    assert [*queue.take([])] == [text(3), text(4), *lines]


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


def test_who_leaves_while_there_is_no_room_is_never_taken() -> None:
    engine = Roomy(0)
    queue = AdmissionQueue(engine)
    assert take(queue, engine, text(1), text(2)) == []
    assert take(queue, engine, Abort(1), Stop()) == [Abort(1), Stop()]
    engine.room = 1
    assert take(queue, engine) == [text(2)]


def test_nothing_newer_passes_a_request_with_images_that_waits_for_room() -> None:
    engine = Roomy(0)
    queue = AdmissionQueue(engine)
    queue.begin()
    assert take(queue, engine, seeing(1)) == []
    engine.room = 1
    queue.begin()
    assert take(queue, engine, text(2)) == [seeing(1)]
    assert take(queue, engine) == []
    engine.room = 1
    queue.begin()
    assert take(queue, engine) == [text(2)]


def test_a_request_with_images_does_not_pass_an_older_one_that_waits_for_room() -> None:
    engine = Roomy(0)
    queue = AdmissionQueue(engine)
    queue.begin()
    assert take(queue, engine, text(1), seeing(2)) == []
    assert take(queue, engine, Abort(1)) == [Abort(1)]
    engine.room = 1
    queue.begin()
    assert take(queue, engine) == [seeing(2)]


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

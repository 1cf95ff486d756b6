"""A client that does not read costs the memory of its own text; the others get theirs in time."""

import asyncio

import pytest
from conftest import Script, Start, read_all, request

from ovserve.engine.client.mailbox import Mailbox
from ovserve.engine.protocol.messages import StepItem
from ovserve.errors import EngineDead


async def test_others_are_served_while_one_does_not_read(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "pieces": ["tick "], "repeat": 200, "step_seconds": 0.002}))
    sleeper = await client.generate(request())
    text, _ = await read_all(await client.generate(request()))
    assert text == "tick " * 200
    assert (await sleeper.next()).prompt_tokens == 1  # admission stays a delta of its own
    merged = await sleeper.next()  # and everything else is one
    assert merged.text == "tick " * 200
    assert (merged.tokens, merged.finish_reason) == (200, "stop")


async def test_a_huge_answer_to_a_client_that_does_not_read(start: Start, script: Script) -> None:
    huge = {"match": "huge", "pieces": ["x" * 100_000], "repeat": 100, "burst": 10}
    client = await start(script(huge, {"match": "", "text": "small"}))
    sleeper = await client.generate(request("huge"))
    assert (await read_all(await client.generate(request("other"))))[0] == "small"
    text, last = await read_all(sleeper)
    assert len(text) == 10_000_000
    assert last.tokens == 100


async def test_mailbox_order_is_admission_text_error() -> None:
    mailbox = Mailbox()
    mailbox.add(0, StepItem(1, "a", 1, None))
    mailbox.fail(EngineDead("gone"))
    mailbox.admit(3, 7)
    admission, text = await mailbox.take(), await mailbox.take()
    assert (admission.prompt_tokens, admission.max_tokens, admission.text) == (3, 7, "")
    assert (text.text, text.tokens) == ("a", 1)
    with pytest.raises(EngineDead):
        await mailbox.take()


async def test_mailbox_survives_a_cancelled_reader() -> None:
    mailbox = Mailbox()
    mailbox.admit(3, 7)
    mailbox.add(0, StepItem(1, "first ", 1, None))
    assert (await mailbox.take()).prompt_tokens == 3
    assert (await mailbox.take()).text == "first "
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    mailbox.add(0, StepItem(1, "a", 1, None))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await mailbox.take()).text == "a"


async def test_reading_past_the_end_is_an_error_not_a_hang() -> None:
    mailbox = Mailbox()
    mailbox.admit(3, 7)
    mailbox.add(0, StepItem(1, "", 1, "stop", last=True))
    await mailbox.take()
    last = await mailbox.take()
    assert (last.finish_reason, last.last) == ("stop", True)
    with pytest.raises(RuntimeError):
        await mailbox.take()


async def test_mailbox_tells_of_several_prompts_once_all_are_in() -> None:
    mailbox = Mailbox(prompts=2, choices=2)
    mailbox.admit(3, 7)
    mailbox.add(0, StepItem(1, "a", 1, "stop", last=True))
    mailbox.admit(4, 5)
    admission = await mailbox.take()
    assert (admission.prompt_tokens, admission.max_tokens) == (7, 5)
    first = await mailbox.take()
    assert (first.index, first.text, first.last) == (0, "a", False)
    mailbox.add(1, StepItem(2, "b", 1, "length", last=True))
    second = await mailbox.take()
    assert (second.index, second.text, second.last) == (1, "b", True)


async def test_an_admission_waits_for_the_first_text_and_is_told_at_once() -> None:
    mailbox, told = Mailbox(), []
    mailbox.on_admission = told.append
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    mailbox.admit(3, 7)
    await asyncio.sleep(0)
    assert told == [3]
    assert not reader.done()
    mailbox.add(0, StepItem(1, "a", 1, None))
    assert (await reader).prompt_tokens == 3


async def test_a_request_that_fails_before_its_first_text_has_no_admission() -> None:
    mailbox = Mailbox()
    mailbox.admit(3, 7)
    mailbox.fail(EngineDead("gone"))
    with pytest.raises(EngineDead):
        await mailbox.take()

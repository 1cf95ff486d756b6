"""The scripted engine obeys the limits of a real one; other packages test against it."""

import pytest
from conftest import Script, Start, read_all, request

from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError, ResourceExhausted


async def test_replies_are_chosen_by_the_prompt(start: Start, script: Script) -> None:
    client = await start(
        script(
            {"match": "weather", "text": "It is  sunny.\n Yes."},
            {"match": "say", "echo": True},
            {"match": "1 2", "pieces": ["é", "🎉"], "repeat": 2},
        )
    )
    assert await text(client, "the weather") == "It is  sunny.\n Yes."
    assert await text(client, "say this back") == "say this back"
    assert await text(client, (1, 2)) == "é🎉é🎉"
    assert await text(client, "else") == "ok."


async def text(client, prompt, **sampling):  # type: ignore[no-untyped-def]
    return (await read_all(await client.generate(request(prompt, **sampling))))[0]


async def test_limits(start: Start, script: Script) -> None:
    client = await start(script({"pieces": ["a", "b", "c"], "repeat": 10}, max_length=5))
    result, last = await read_all(await client.generate(request("one two")))
    assert (result, last.finish_reason, last.tokens) == ("abc", "length", 3)
    result, last = await read_all(await client.generate(request("one two", max_tokens=2)))
    assert (result, last.finish_reason) == ("ab", "length")
    with pytest.raises(ContextLengthExceeded, match="5 tokens.*shorten it by at least 2"):
        await text(client, "one two three four five six")
    with pytest.raises(InvalidArgument):
        await text(client, "")


async def test_exact_length_ends_as_stop_does(start: Start, script: Script) -> None:
    client = await start(script({"pieces": ["a", "b"], "finish": "stop"}))
    result, last = await read_all(await client.generate(request(max_tokens=3)))
    assert (result, last.finish_reason) == ("ab", "stop")


async def test_stop_strings_over_pieces(start: Start, script: Script) -> None:
    client = await start(script({"pieces": ["ab", "cd", "ef"], "repeat": 0}))
    assert await text(client, "x", stop=("bcde",)) == "a"
    assert await text(client, "x", stop=("bcde",), include_stop=True) == "abcde"


async def test_the_last_delta_names_the_stop_string(start: Start, script: Script) -> None:
    client = await start(script({"pieces": ["ab", "cd"], "repeat": 1, "finish": "stop"}))
    _, last = await read_all(await client.generate(request(stop=("cd", "bcd"))))
    assert (last.finish_reason, last.stop_string) == ("stop", "bcd")
    _, last = await read_all(await client.generate(request(stop=("zz",))))
    assert (last.finish_reason, last.stop_string) == ("stop", None)


async def test_refusals_keep_their_kind(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "refuse": "resource_exhausted", "wait_steps": 2}))
    with pytest.raises(ResourceExhausted):
        await text(client, "x")


async def test_a_refusal_cannot_pose_as_a_dying_engine(start: Start, script: Script) -> None:
    with pytest.raises(LoadError, match="raise_in_step"):
        await start(script({"refuse": "unavailable"}))


async def test_every_beam_ends(start: Start, script: Script) -> None:
    client = await start(script({"pieces": ["a", "b"]}))
    stream = await client.generate(request(beams=4, n=3, max_tokens=9))
    texts, last = {0: "", 1: "", 2: ""}, False
    while not last:
        delta = await stream.next()
        texts[delta.index] += delta.text
        last = delta.last
    assert texts == {0: "ab", 1: "ab", 2: "ab"}

"""step() raises: the library is poisoned, so all requests end and the next engine takes over."""

import logging

import pytest
from conftest import Script, Start, eventually, read_all, request

from ovserve.errors import EngineDead

POISON = {"match": "poison", "raise_in_step": 3, "pieces": ["x"], "repeat": 0}
CALM = {"match": "", "pieces": ["tick "], "repeat": 0, "step_seconds": 0.01}


async def test_all_requests_end_with_the_reason_after_their_text(start: Start, script: Script) -> None:
    client = await start(script(POISON, CALM))
    neighbour = await client.generate(request("neighbour"))
    culprit = await client.generate(request("poison"))
    for stream in (neighbour, culprit):
        assert (await stream.next()).prompt_tokens == 1
    # Nothing of them is read meanwhile, so the next engine gets them as well, and ends in the same way.
    await eventually(lambda: client.stats().restarts == 2, 60)
    for stream in (neighbour, culprit):
        assert (await stream.next()).text
        with pytest.raises(EngineDead, match="failed in a step: the script says that this step raises"):
            await stream.next()


async def test_the_next_engine_answers(
    start: Start, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start(script(POISON, {"match": "", "text": "all is well"}))
    pid = client.pid
    caplog.set_level(logging.INFO)
    with pytest.raises(EngineDead):
        await read_all(await client.generate(request("poison")))
    assert (await read_all(await client.generate(request("calm"))))[0] == "all is well"
    assert client.pid != pid
    # One whose first word was not read yet when the step raised is tried once more, and raises again.
    assert client.stats().restarts == 1 + client.stats().repeated
    assert "exit status 70" in caplog.text
    assert f"engine[{pid}]: RuntimeError" in caplog.text  # its traceback is in our log


async def test_a_refused_request_harms_nobody(start: Start, script: Script) -> None:
    client = await start(script({"match": "greedy", "refuse": "resource_exhausted"}, CALM))
    neighbour = await client.generate(request("neighbour", max_tokens=20))
    with pytest.raises(Exception, match="the script rejects"):
        await read_all(await client.generate(request("greedy")))
    assert (await read_all(neighbour))[0] == "tick " * 20
    assert client.stats().restarts == 0

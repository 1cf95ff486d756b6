"""The server is killed with SIGKILL, so it can tell nobody; no engine may hold the model afterwards."""

import asyncio
import os
import signal
import sys

import pytest
from conftest import Script, is_running

SERVER = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from conftest import request, text_spec
from ovserve.engine.client.text import TextClient

async def main():
    client = await TextClient.start(text_spec(sys.argv[1]))
    stream = await client.generate(request())
    await stream.next()
    print(client.pid, flush=True)
    while True:
        await stream.next()

asyncio.run(main())
"""


async def start_server(path: str) -> tuple[asyncio.subprocess.Process, int]:
    code = SERVER.format(tests=os.path.dirname(__file__))
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, path, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    engine_pid = int(await server.stdout.readline())
    assert is_running(engine_pid)
    return server, engine_pid


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param({"pieces": ["tick "], "repeat": 0, "step_seconds": 0.01}, id="between-steps"),
        pytest.param({"step_seconds": 600}, id="in-a-long-step"),
    ],
)
async def test_engine_ends_soon_after(script: Script, reply: dict[str, object]) -> None:
    server, engine_pid = await start_server(script(reply))
    server.send_signal(signal.SIGKILL)
    await server.wait()
    for _ in range(3000):
        if not is_running(engine_pid):
            return
        await asyncio.sleep(0.02)
    os.kill(engine_pid, signal.SIGKILL)
    pytest.fail("the engine outlived its server by 2 s")


async def test_ctrl_c_does_not_reach_the_engine_first(script: Script) -> None:
    server, engine_pid = await start_server(script({"pieces": ["tick "], "repeat": 0, "step_seconds": 0.01}))
    os.kill(engine_pid, signal.SIGINT)
    await asyncio.sleep(0.2)
    assert is_running(engine_pid)
    server.kill()
    await server.wait()

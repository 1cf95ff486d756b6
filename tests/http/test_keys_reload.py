"""The keys file changes while clients are at work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from ovserve.access import Guard
from ovserve.access.keys import entry_text
from tests.conftest import script_graph
from tests.http.conftest import running
from tests.http.test_keys import OTHER, SCRIPT, A, B, bearer, chat


async def test_a_new_file_under_load_lets_in_whom_it_names_and_keeps_what_was_used(tmp_path: Path) -> None:
    """Also a broken file in between: the keys before it stay in force."""
    keys = tmp_path / "keys.toml"
    steady = entry_text("a", A) + "requests_per_day = 100000\n"
    keys.write_text(steady + entry_text("b", B))
    statuses: list[int] = []
    guard = Guard("", keys)
    async with (
        running(script_graph(tmp_path / "m", SCRIPT), guard) as server,
        httpx.AsyncClient(base_url=server.url, timeout=230) as http,
    ):
        stop = asyncio.Event()

        async def ask(key: str) -> int:
            return (await http.post("/v3/chat/completions", json=chat(), headers=bearer(key))).status_code

        async def client() -> None:
            while not stop.is_set():
                statuses.append(await ask(A))

        async def until(key: str, status: int) -> None:
            async with asyncio.timeout(60):
                while await ask(key) != status:  # noqa: ASYNC110  it asks over HTTP
                    await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client())
            assert await ask(B) == 200
            keys.write_text(steady + entry_text("other", OTHER))
            await until(OTHER, 200)
            assert await ask(B) == 401
            keys.write_text("[[key]]\nname = 7")
            await asyncio.sleep(1.5)
            assert await ask(OTHER) == 200
            keys.write_text(steady + entry_text("b", B))
            await until(B, 200)
            assert await ask(OTHER) == 401
            stop.set()
        assert set(statuses) == {200}
        answered = {e.caller.name: e.caller.day.usage.requests for e in guard.entries}["a"]
        assert answered == len(statuses), "usage outlives a change of the file"

"""Daily limits of keys, kept in the file of stored responses."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from ovserve.access import Guard
from ovserve.access.caller import SECONDS_PER_DAY, Caller, Day, Rights, Usage
from ovserve.access.keys import entry_text
from ovserve.errors import RateLimited
from ovserve.services.responses.daily_usage import DailyUsage
from ovserve.services.responses.store import ResponseStore
from tests.conftest import script_graph, start_server

KEY = "ovs-0123456789abcdef"


class Clock:
    now = 10 * SECONDS_PER_DAY + 100.0

    def __call__(self) -> float:
        return self.now


def test_a_day_ends_at_midnight() -> None:
    clock = Clock()
    caller = Caller("a", Rights(requests_per_day=2, tokens_per_day=100))
    caller.day = Day(clock)
    caller.ask()
    caller.ask()
    with pytest.raises(RateLimited, match="2 requests per day") as refused:
        caller.ask()
    assert refused.value.retry_after == SECONDS_PER_DAY - 100
    clock.now += SECONDS_PER_DAY
    caller.ask()
    caller.spend(100)
    with pytest.raises(RateLimited, match="100 tokens per day"):
        caller.ask()
    assert caller.day.usage == Usage(11, 1, 100), "a request that is rejected does not count"


def test_what_comes_while_a_count_is_written_is_not_lost() -> None:
    day = Day(Clock())
    day.add(requests=2, tokens=5)
    written = day.unsaved
    day.add(requests=1)
    day.saved(written, Usage(10, 7, 50))
    assert (day.usage, day.unsaved) == (Usage(10, 8, 50), Usage(10, 1, 0))


async def test_servers_on_one_file_count_together(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry_text("a", KEY) + "requests_per_day = 3\n")
    stores = [ResponseStore(tmp_path / "r.db", ttl=60, max_bytes=1 << 20) for _ in "ab"]
    guards = [Guard(keys_file=keys) for _ in stores]
    one, two = (DailyUsage(guard, store) for guard, store in zip(guards, stores, strict=True))
    first, second = (guard.caller(KEY) for guard in guards)
    first.ask()
    second.ask()
    await one.sync()
    await two.sync()
    await one.sync()
    assert first.day.usage[1:] == second.day.usage[1:] == (2, 0)
    second.ask()
    await two.sync()
    await one.sync()
    with pytest.raises(RateLimited):
        first.ask()
    for store in stores:
        await store.close()


def test_a_limit_survives_a_kill_and_is_told_in_the_form_of_each_api(tmp_path: Path) -> None:
    keys, graph = tmp_path / "keys.toml", script_graph(tmp_path / "m", "{}")
    keys.write_text(entry_text("a", KEY) + "requests_per_day = 2\n")
    flags = ["--api_keys_file", str(keys), "--response_store_path", str(tmp_path / "r.db")]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    headers = {"Authorization": f"Bearer {KEY}"}
    server = start_server(graph, *flags, name="m")
    try:
        for _ in range(2):
            assert httpx.post(f"{server.v3}/chat/completions", json=body, headers=headers).status_code == 200
        deadline, written = time.monotonic() + 230, 0
        while written < 2:  # a count is written after a second
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with closing(sqlite3.connect(tmp_path / "r.db")) as db, suppress(sqlite3.OperationalError):
                written = sum(row[0] for row in db.execute("SELECT requests FROM daily_usage"))
    finally:
        server.process.kill()
        server.stop()
    server = start_server(graph, *flags, name="m")
    try:
        refused = httpx.post(f"{server.v3}/chat/completions", json=body, headers=headers)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(refused.headers["Retry-After"]) <= SECONDS_PER_DAY
        refused = httpx.post(f"{server.v3}/messages", json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        refused = httpx.post(f"{server.url}/api/chat", json=body, headers=headers)
        assert (refused.status_code, "per day" in refused.json()["error"]) == (429, True)
    finally:
        server.stop()

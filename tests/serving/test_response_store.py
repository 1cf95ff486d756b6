"""The store by itself: what it keeps, for how long, how much, for whom; and how it fails."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ovserve.services.responses.store import Record, ResponseStore, StoreError
from tests.conftest import ROOT


@asynccontextmanager
async def opened(path: Path, *, ttl: float = 1000, max_bytes: int = 1 << 26) -> AsyncIterator[ResponseStore]:
    store = ResponseStore(path, ttl=ttl, max_bytes=max_bytes)
    try:
        yield store
    finally:
        await store.close()


def files(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


def hold(path: Path) -> subprocess.Popen[str]:
    """Another server that has a response under way."""
    command = [sys.executable, "-c", HOLD, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def record(
    id_: str, *, owner: str = "", previous: str | None = None, size: int = 0, server: str = ""
) -> Record:
    body = json.dumps({"id": id_, "output": [], "status": "completed", "pad": "x" * size}).encode()
    return Record(id_, owner, time.time(), server, previous, body, b"[]", b"event: x\n\n" * 3)


async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "deep/er/r.db") as store:
        put = record("a")
        await store.put(put)
        assert await store.get("", "a") == put
        assert all(
            p.stat().st_mode & 0o077 == 0 for p in files(tmp_path / "deep/er", "r.db*") if p.suffix != ".lock"
        )
    async with opened(tmp_path / "deep/er/r.db") as store:
        found = await store.get("", "a")
        assert found is not None
        assert found.log == b"event: x\n\n" * 3
        assert await store.delete("", "a")
        assert not await store.delete("", "a")
        assert await store.get("", "a") is None


async def test_owners_do_not_see_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as store:
        await store.put(record("a", owner="ann"), ["item"])
        assert await store.get("bob", "a") is None
        assert await store.chain("bob", "a") == []
        assert await store.find_item("bob", "item") is None
        assert not await store.delete("bob", "a")
        found = await store.find_item("ann", "item")
        assert found is not None
        assert found.id == "a"


async def test_a_chain_is_the_oldest_first_and_keeps_its_past_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("ovserve.services.responses.store.time", SimpleNamespace(time=lambda: now))
    async with opened(tmp_path / "r.db", ttl=60) as store:
        for id_, previous in (("a", None), ("b", "a"), ("c", "b")):
            await store.put(record(id_, previous=previous))
        now += 35
        assert [r.id for r in await store.chain("", "c")] == ["a", "b", "c"]
        now += 35  # past the first expiry, not past the second
        assert [r.id for r in await store.chain("", "c")] == ["a", "b", "c"]
        await store.delete("", "a")
        assert [r.id for r in await store.chain("", "c")] == ["b", "c"]


async def test_time_to_live(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db", ttl=0.05) as store:
        await store.put(record("a"))
        await asyncio.sleep(0.1)
        assert await store.get("", "a") is None
        store._purged = 0.0
        await store.put(record("b"))
    with sqlite3.connect(tmp_path / "r.db") as db:
        assert db.execute("SELECT id FROM responses").fetchall() == [("b",)]
    db.close()


async def test_the_size_is_bounded_and_the_longest_unused_go_first(tmp_path: Path) -> None:
    limit = 1 << 20
    async with opened(tmp_path / "r.db", max_bytes=limit) as store:
        for i in range(60):
            await store.put(record(f"r{i}", size=50_000), [f"item{i}"])
            await store.chain("", "r0")  # in use all the time
        assert await store.get("", "r59") is not None
        assert await store.get("", "r0") is not None
        assert await store.get("", "r1") is None
        assert await store.find_item("", "item1") is None
        with pytest.raises(StoreError, match="more than a quarter"):
            await store.put(record("huge", size=limit // 2))
    assert (tmp_path / "r.db").stat().st_size < limit * 1.2


async def test_reads_see_the_writes_before_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as store:
        for i in range(50):
            writing = asyncio.create_task(store.put(record(f"r{i}", size=10_000)))
            await asyncio.sleep(0)
            assert await store.get("", f"r{i}") is not None
            await writing


async def test_a_slow_disk_does_not_stop_the_loop(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as store:
        await store.put(record("a"))
        released = threading.Event()
        blocked = asyncio.create_task(store._call(lambda db: released.wait(60)))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not blocked.done()
        released.set()
        await blocked


async def test_a_full_disk_is_an_error_and_passes(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as store:
        await store.put(record("a"))
        await store._call(lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
        with pytest.raises(StoreError, match="full"):
            await store.put(record("b", size=500_000))
        assert await store.get("", "a") is not None
        await store._call(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())
        await store.put(record("b", size=500_000))


async def test_a_broken_file_is_moved_aside_and_a_new_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r.db").write_bytes(b"this is no database" * 1000)
    async with opened(tmp_path / "r.db") as store:
        with pytest.raises(StoreError):
            await store.put(record("a"))
        await store.put(record("b"))
        assert await store.get("", "b") is not None
    assert len(files(tmp_path, "r.db.broken-*")) == 1
    assert "a new one is begun" in caplog.text


async def test_a_file_that_breaks_while_open(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    async with opened(path) as store:
        for i in range(30):
            await store.put(record(f"r{i}", size=20_000))
        await store._call(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        await store._call(lambda db: db.execute("PRAGMA cache_size = 1").fetchall())
        with pytest.raises(StoreError):
            await asyncio.gather(*(store.get("", f"r{i}") for i in range(30)))
        await store.put(record("after"))
        assert await store.get("", "after") is not None


async def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with opened(tmp_path / "file/r.db") as store:
        with pytest.raises(StoreError):
            await store.put(record("a"))


async def test_another_schema_is_left_alone(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "r.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    async with opened(tmp_path / "r.db") as store:
        with pytest.raises(StoreError, match="schema 99"):
            await store.put(record("a"))
    assert not files(tmp_path, "*.broken-*")


HOLD = """
import asyncio, sys, time
from pathlib import Path
from ovserve.services.responses.store import Record, ResponseStore
async def main():
    store = ResponseStore(Path(sys.argv[1]), ttl=1000, max_bytes=1 << 26)
    await store.put(Record("theirs", "", time.time(), store.instance, None, b"{}", b"[]"))
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_orphans_are_those_of_servers_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    other = hold(path)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "ready\n"
        async with opened(path) as store:
            await store.put(record("mine", server=store.instance))
            assert await store.orphans() == []
            other.kill()
            other.wait()
            (tmp_path / "r.db.0123.lock").touch()  # of one that died without a response
            assert [r.id for r in await store.orphans()] == ["theirs"]
            assert [p.name for p in files(tmp_path, "*.lock")] == [f"r.db.{store.instance}.lock"]
        assert not files(tmp_path, "*.lock")
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


async def test_events_of_a_running_response_are_appended_and_replaced_at_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as store:
        await store.put(record("a", server=store.instance))
        await store.put(record("ended"))
        for part in (b"one ", b"two"):
            await store.append({"a": part, "ended": b"late", "gone": b"x"})
        with sqlite3.connect(tmp_path / "r.db") as db:
            rows = db.execute("SELECT response, log FROM parts ORDER BY number").fetchall()
        db.close()
        assert rows == [("a", b"one "), ("a", b"two")]
        async with opened(tmp_path / "r.db") as other:
            assert await other.orphans() == [], "its server lives"
    async with opened(tmp_path / "r.db") as after:
        (lost,) = await after.orphans()
        assert (lost.id, lost.log) == ("a", b"one two")
        await after.put(replace(lost, server=""))
        with sqlite3.connect(tmp_path / "r.db") as db:
            assert db.execute("SELECT count(*) FROM parts").fetchone() == (0,)
        db.close()
        kept = await after.get("", "a")
        assert kept is not None
        assert kept.log == b"one two"


async def kept(store: ResponseStore, owner: str, ids: list[str]) -> list[str]:
    return [id_ for id_ in ids if await store.get(owner, id_) is not None]


async def test_a_key_that_stores_much_evicts_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db", max_bytes=1 << 20) as store:
        few = [f"a{n}" for n in range(4)]
        for id_ in few:
            await store.put(record(id_, owner="ann", size=20_000))
        many = [f"b{n}" for n in range(120)]
        for id_ in many:
            await store.put(record(id_, owner="bob", size=20_000))
        assert await kept(store, "ann", few) == few
        left = await kept(store, "bob", many)
        assert 10 < len(left) < 60
        assert left == many[-len(left) :], "the longest unused go first"


async def test_a_key_has_a_quota(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "r.db", ttl=1000, max_bytes=1 << 24, max_bytes_per_owner=100_000)
    ids = [str(n) for n in range(12)]
    for id_ in ids:
        await store.put(record(id_, owner="ann", size=20_000))
        await store.put(record(f"b{id_}", owner="bob", size=2_000))
    left = await kept(store, "ann", ids)
    assert left == ids[-len(left) :]
    assert 1 <= len(left) <= 4
    assert len(await kept(store, "bob", [f"b{id_}" for id_ in ids])) == 12
    with pytest.raises(StoreError, match="more than a quarter of 100000"):
        await store.put(record("c", owner="ann", size=30_000))
    await store.close()


async def test_what_owners_hold_is_counted_in_a_file_of_before(tmp_path: Path) -> None:
    def usage() -> list[tuple[str, int]]:
        with sqlite3.connect(tmp_path / "r.db") as db:
            return db.execute("SELECT owner, bytes FROM usage ORDER BY owner").fetchall()

    async with opened(tmp_path / "r.db") as store:
        await store.put(record("a", owner="ann", size=1000))
        await store.put(record("b", owner="bob", size=9000))
    before = usage()
    with sqlite3.connect(tmp_path / "r.db") as db:
        triggers = "".join(f"DROP TRIGGER usage_{name};" for name in ("insert", "update", "delete"))
        db.executescript(f"{triggers} DROP TABLE usage")
    async with opened(tmp_path / "r.db") as store:
        await store.check()
        assert usage() == before
        await store.put(record("a", owner="ann", size=1))
        await store.delete("bob", "b")
        with sqlite3.connect(tmp_path / "r.db") as db:
            real = db.execute(
                "SELECT sum(length(body) + length(input) + length(log)) FROM responses"
            ).fetchone()
        assert usage() == [("ann", real[0])]

"""Running responses are written down as they go; a disk that fails for a while loses and doubles nothing."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.services.responses.run import Run
from ovserve.services.responses.service import Checkpoints
from ovserve.services.responses.store import Record, ResponseStore
from tests.api.openai.test_responses_writer import ADMITTED, writer
from tests.conftest import eventually
from tests.packets import packet


def written(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as db:
        return b"".join(row[0] for row in db.execute("SELECT log FROM parts ORDER BY number"))


def packets(*texts: str) -> list[ResponseEvents]:
    """What a graph sends: the admission, then a packet per text."""
    answer = writer()
    answer.chunk(ADMITTED)
    for text in texts[1:]:
        answer.chunk(packet(text, 1))
    return answer.packets


async def never(run: Run) -> None:
    raise AssertionError(f"{run.id} was not cancelled")


async def test_what_is_new_is_appended_and_a_failure_is_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.db"
    store = ResponseStore(path, ttl=1000, max_bytes=1 << 26)
    begin, message, one, many, two, late = packets("", "", "one ", "x" * 100_000, " two", "late")
    run = Run(begin, "", keeps=True)
    run.received(begin)
    run.received(message)
    await store.put(Record(run.id, "", 0.0, store.instance, None, b"{}", b"[]"))
    checkpoints = Checkpoints(store, {run.id: run}, never, seconds=0.01)
    checkpoints.start()
    try:
        run.received(one)
        await eventually(lambda: written(path) == run.log and b'"one "' in run.log)
        await store._call(lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
        run.received(many)
        await eventually(lambda: "cannot be stored" in caplog.text)
        run.received(two)
        await asyncio.sleep(0.05)  # several more turns that fail
        assert caplog.text.count("cannot be stored") == 1
        await store._call(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())
        await eventually(lambda: written(path) == run.log)
        run.end()
        last = run.received(late)
        assert last
        await asyncio.sleep(0.05)
        assert written(path) == run.log.removesuffix(last), "its end is written by itself"
    finally:
        await checkpoints.stop()
        await store.close()
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert [text for text in errors if "cannot be stored" not in text] == []

"""Many reloads under load leave processes, file descriptors and memory where they were."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Server
from tests.reload.site import TRIGGERS, Site, script, site

WARM_UP = 3
MEGABYTE = 1 << 20


def descriptors(server: Server) -> Counter[str]:
    """How many there are of each kind, without those to template processes: on a busy machine a second one is
    started and kept."""
    pid = server.process.pid
    kinds = Counter(socket=-len(server.children("ovserve.sandbox.rendering")))
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            name = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")[0]
            kinds[re.sub(r"ovserve-\d+-\w+-", "", name)] += 1  # each connection has a lock file of its own
    return kinds


def resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def reloads(here: Site, begin: int, end: int) -> None:
    for i in range(begin, end):
        here.write_graph("x", script(f"v{i}"))
        await here.fire()
        if here.trigger is TRIGGERS["watcher"]:
            await here.until_version("x", f"v{i}")
        else:
            assert (await here.ask("x", stream=True)).version == f"v{i}"
        assert (await here.states())["x"] == ("AVAILABLE", "OK", "OK")


SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("trigger", "count"), [("rest", 6), *(pytest.param(trigger, 200, marks=SLOW) for trigger in TRIGGERS)]
)
async def test_reloads_under_load_leave_nothing_behind(trigger: str, count: int, tmp_path: Path) -> None:
    async with site(tmp_path / "site", TRIGGERS[trigger], x="v0", keep="kept") as here:
        pid = here.server.process.pid
        async with here.clients("x", "keep") as clients:
            await reloads(here, 1, WARM_UP)
        await here.until_engines(2)
        await here.hang_up()
        before = descriptors(here.server), resident(pid)
        async with here.clients("x", "keep") as clients:
            await reloads(here, WARM_UP, WARM_UP + count)
            await clients.round()
        order = [int(version[1:]) for version in clients.versions("x")]
        assert order == sorted(order)
        assert order[-1] == WARM_UP + count - 1
        assert {*clients.versions("keep")} == {"kept"}
        await here.until_engines(2)
        await here.hang_up()
        server = here.server
        await _settled(lambda: descriptors(server) <= before[0], lambda: (before[0], descriptors(server)))
        growth = resident(pid) - before[1]
        assert growth < 8 * MEGABYTE + count * 50_000, f"{growth / MEGABYTE:.1f} MB in {count} reloads"
        assert here.loads("x") == WARM_UP + count


async def _settled(condition: object, shown: object) -> None:
    for _ in range(3000):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"did not settle: {shown()}")  # type: ignore[operator]

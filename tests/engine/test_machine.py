"""Memory as the kernel tells it, from files laid out as both versions of control groups have them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from conftest import Script, Start, eventually, kill_engine, reaches, read_all, request

from ovserve.engine.client.health.memory_limit import MemoryLimit
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.host.memory import Memory, memory, oom_kills, resident
from ovserve.errors import LoadError

GB = 1 << 30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_were_read_are_not_taken_for_memory_in_use(tmp_path: Path, version: int) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    group = groups / ("memory/a" if version == 1 else "a")
    limit, used, stat = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    write(proc, {"meminfo": f"MemAvailable: {8 * GB >> 10} kB"})
    write(proc, {"self/cgroup": "4:memory:/a" if version == 1 else "0::/a"})
    write(group, {limit: str(4 * GB), used: str(3 * GB), "memory.stat": f"anon 7\n{stat} {2 * GB}"})
    assert memory(proc, groups) == Memory(3 * GB, "container")


def test_kills_are_counted_in_the_innermost_group_that_tells(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    write(proc, {"self/cgroup": "0::/a/b", "vmstat": "pgfault 5\noom_kill 9"})
    assert oom_kills(proc, groups) == 9
    write(groups, {"a/memory.events": "oom 3\noom_kill 2\noom_group_kill 0"})
    assert oom_kills(proc, groups) == 2
    write(groups, {"a/b/memory.events": "oom 1\noom_kill 1"})
    assert oom_kills(proc, groups) == 1
    write(proc, {"self/cgroup": "4:memory:/c"})
    write(groups, {"memory/c/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4"})
    assert oom_kills(proc, groups) == 4
    assert oom_kills(tmp_path / "none", tmp_path / "none") == 0


def test_what_a_process_holds() -> None:
    before = resident(os.getpid())
    taken = b"x" * (64 << 20)
    assert resident(os.getpid()) - before > len(taken) // 2
    assert resident(2**22 + 1) == 0


async def test_an_engine_that_is_too_large_from_the_start_is_not_used(start: Start, script: Script) -> None:
    with pytest.raises(LoadError, match=r"over the limit of 1 MB \(--engine_memory_limit\)"):
        await start(script(), restarts=RestartPolicy(memory_limit=1 << 20))


def test_requests_are_taken_again_only_when_there_is_some_room(monkeypatch: pytest.MonkeyPatch) -> None:
    held = 90
    monkeypatch.setattr("ovserve.engine.client.health.memory_limit.resident", lambda pid: held)
    ceiling = MemoryLimit(100, pid=1)
    for held, short in ((90, False), (101, True), (97, True), (94, False), (97, False)):
        ceiling.check()
        assert bool(ceiling.shortage) is short, held


def test_an_engine_is_outgrown_when_another_would_end_the_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    held, left = 100 << 20, 300 << 20
    monkeypatch.setattr("ovserve.engine.client.health.memory_limit.resident", lambda pid: held)
    monkeypatch.setattr("ovserve.engine.client.health.memory_limit.memory", lambda: Memory(left, "container"))
    ceiling = MemoryLimit(0, pid=1)
    for held_mb, left_mb, short, outgrown in (
        (100, 300, False, False),
        (250, 300, False, False),
        (250, 150, True, True),  # 150 of its own, and 150 that are left
        (110, 150, True, False),  # somebody else took it
        (100, 10, True, False),
    ):
        held, left = held_mb << 20, left_mb << 20
        ceiling.check()
        assert (bool(ceiling.shortage), ceiling.outgrown) == (short, outgrown), (held_mb, left_mb)


async def test_who_killed_it(start: Start, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await start(script({"match": "", "text": "well"}), restarts=RestartPolicy(first_pause=0.2))
    await kill_engine(client)
    await eventually(lambda: "killed by SIGKILL" in client.state.reason)  # somebody; the counter stands still
    await reaches(client, "ready")
    # From what the kernel has counted so far: this machine may have seen such kills before.
    monkeypatch.setattr("ovserve.engine.client.process.oom_kills", itertools.count(oom_kills() + 1).__next__)
    await kill_engine(client)
    await eventually(lambda: "killed by the kernel: out of memory" in client.state.reason)
    assert (await read_all(await client.generate(request())))[0] == "well"

"""Memory as the kernel tells it, from files laid out as both versions of control groups have them."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Script, Start, eventually, kill_engine, reaches, read_all, request

from ovserve.engine.client.settings import MemoryLimit
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.host.cpu import processor
from ovserve.engine.host.memory import Memory, memory, oom_kills, resident
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.errors import LoadError
from ovserve.serving.model_size import estimate
from tests.conftest import ROOT
from tests.faults.memory_group import memory_group

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
    # Pages that are used, but mapped by no process, are dropped as well; mapped ones are weights in use.
    active, mapped = (
        ("total_active_file", "total_mapped_file") if version == 1 else ("active_file", "file_mapped")
    )
    pages = f"inactive_file 1\n{stat} {GB}\n{active} {GB}\n{mapped} {GB // 2}"
    write(group, {"memory.stat": pages if version == 1 else pages.removeprefix("inactive_file 1\n")})
    assert memory(proc, groups) == Memory(2 * GB + GB // 2, "container")


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
    with mmap.mmap(-1, 64 << 20) as taken:  # what the allocator gives may be resident before
        for at in range(0, len(taken), mmap.PAGESIZE):
            taken[at] = 1
        assert resident(os.getpid()) - before > len(taken) // 2
    assert resident(2**22 + 1) == 0


async def test_an_engine_that_is_too_large_from_the_start_is_not_used(start: Start, script: Script) -> None:
    with pytest.raises(LoadError, match=r"over the limit of 1 MB \(--engine_memory_limit\)"):
        await start(script(), restarts=RestartPolicy(memory_limit=1 << 20))


def test_requests_are_taken_again_only_when_there_is_some_room(monkeypatch: pytest.MonkeyPatch) -> None:
    held = 90
    monkeypatch.setattr("ovserve.engine.client.settings.resident", lambda pid: held)
    ceiling = MemoryLimit(100, pid=1)
    for held, short in ((90, False), (101, True), (97, True), (94, False), (97, False)):
        ceiling.check()
        assert bool(ceiling.shortage) is short, held


def test_an_engine_is_outgrown_when_another_would_end_the_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    held, left = 100 << 20, 300 << 20
    monkeypatch.setattr("ovserve.engine.client.settings.resident", lambda pid: held)
    monkeypatch.setattr("ovserve.engine.client.settings.memory", lambda: Memory(left, "container"))
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


# ---- what a real model takes

CHILD = """
import json, re, sys
from pathlib import Path
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.engine.host.memory import memory
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.engine.worker.mapped_files import MappedFiles
from tests.engine.real import FRANCE, add, generate

def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def mapped():
    parts = re.split(r"^[0-9a-f]+-[0-9a-f]+ ", Path("/proc/self/smaps").read_text(), flags=re.M)
    return sum(int(re.search(r"Rss:\\s+(\\d+)", part)[1]) << 10 for part in parts if "openvino_model.bin" in part)

input()  # until it is in its control group
spec, files, before = PagedTextSpec(sys.argv[1]), MappedFiles(), []

def load():
    engine = PagedEngine(spec)
    engine.wait_for_forms()
    before.append(mapped())
    return engine

engine = files.guard(spec, load, shared=False)
left, pool = memory(), engine._scheduler.pool
print(json.dumps({
    "limit": left.limit, "left": left.available, "cache": pool.size * engine._model.block_bytes,
    "held": held(), "before": before[0], "after": mapped(),
    "text": generate(engine, FRANCE, max_tokens=12).text,
}), flush=True)
input()  # until others have taken memory
add(engine, 7, "harbour " * 4000, max_tokens=4)
items = []
while engine.busy:
    engine.step()
    items += engine.collect()
items += engine.collect()
print(json.dumps([[type(item).__name__, getattr(item, "kind", ""), getattr(item, "message", "")] for item in items]))
"""


@pytest.mark.long
def test_a_loaded_model_in_a_container(model_path: str) -> None:
    """The cache is made for what the container has left after the load, no page of the file stays mapped, and a
    prompt for whose cache others have left no memory ends in an error."""
    directory, limit = Path(model_path), 2 * GB
    command = [sys.executable, "-c", CHILD, str(directory)]
    with (
        memory_group(limit) as group,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "."},
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        group.take(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        told = json.loads(child.stdout.readline())
        group.limit(told["held"] + (256 << 20))
        ended = json.loads(child.communicate(b"\n")[0])
    file = (directory / "openvino_model.bin").stat().st_size
    assert told["limit"] == "container"
    assert told["left"] + told["held"] < limit + (16 << 20), "read one after the other, so a page or so apart"
    assert told["cache"] < 0.6 * told["left"]
    if processor().has_kernels:  # which give back what they copied, matrix by matrix
        assert told["before"] < file // 4
    else:
        assert told["before"] > file // 2
    assert told["after"] == 0
    assert "Paris" in told["text"]
    [[kind, error, message]] = ended
    assert (kind, error) == ("Failed", "resource_exhausted")
    assert "needs more memory than the machine or container has left" in message
    one_form = estimate(PagedTextSpec(str(directory))).resident
    most = 1.2 if processor().has_kernels else 3  # where a small model is compiled twice
    assert 0.7 * one_form < told["held"] < most * one_form

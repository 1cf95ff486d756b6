"""The processor as Linux's files tell it, and which form of weights it wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ovserve.engine.host.cpu import MAX_ISA, Processor, processor


def test_the_processor_is_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A: B\nflags\t: avx2 amx_bf16\n")
    for cpu in range(os.cpu_count() or 1):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-1\n")
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.max").write_text("max 100000\n")
    found = processor(tmp_path, tmp_path)
    assert found == Processor("A: B", 1, len(os.sched_getaffinity(0)), frozenset({"avx2", "amx_bf16"}))
    assert found.unpacked_is_faster
    (tmp_path / "fs/cgroup/cpu.max").write_text("150000 100000\n")
    assert processor(tmp_path, tmp_path).logical == 1
    monkeypatch.setenv(MAX_ISA, "AVX2")
    assert processor(tmp_path, tmp_path).flags == {"avx2"}


@pytest.mark.parametrize(
    ("flags", "unpacked"),
    [
        ("avx512f amx_tile amx_int8 amx_bf16", True),
        ("avx512f avx512_vnni", False),
        ("avx512f avx512_vnni avx512_bf16", False),
        ("amx_tile amx_int8", False),
        ("", False),  # no Linux
    ],
)
def test_which_form_of_weights_is_faster(flags: str, unpacked: bool) -> None:
    assert Processor(flags=frozenset(flags.split())).unpacked_is_faster is unpacked

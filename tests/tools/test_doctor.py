"""`ovserve doctor`: the whole command on this machine, and its judgement of machines that are not here."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.engine.host.cpu import Processor
from ovserve.engine.host.memory import Memory
from ovserve.engine.model.gguf import KINDS, Tensor
from ovserve.engine.model.gguf_forms import EMBEDDING, OUTPUT, converted_size
from ovserve.pull.recommend import SIZES, Size, fitting, read_bandwidth
from ovserve.tools.doctor import (
    Finding,
    check_cache,
    check_files,
    check_kernels,
    check_load,
    check_memory,
    check_models,
    check_models_of,
    check_processor,
    check_shared_memory,
    check_store,
    check_versions,
    report,
    text,
)
from tests.conftest import ROOT

# layers, width, feed-forward, heads, heads of keys, size of a head, vocabulary, tied
SHAPES = {
    "1B": (16, 2048, 8192, 32, 8, 64, 128_256, True),
    "3B": (28, 3072, 8192, 24, 8, 128, 128_256, True),
    "8B": (32, 4096, 14_336, 32, 8, 128, 128_256, False),
    "14B": (40, 5120, 17_408, 40, 8, 128, 151_936, False),
}


def test_on_this_machine_with_a_port_that_is_taken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ovserve", "doctor", "--json", "--grpc_port", "0"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*command, "--rest_port", str(port)], cwd=ROOT, capture_output=True, text=True, check=False
        )
    found = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert not json.loads(done.stdout)["ok"]
    assert found["rest_port"]["status"] == "problem"
    assert str(port) in found["rest_port"]["found"]
    assert found["devices"]["found"].startswith("CPU ("), "asked in a child process"
    assert found["versions"]["status"] == "ok"
    assert {"processor", "memory", "model sizes", "models", "compiled models"} <= found.keys()
    assert "grpc_port" not in found


@pytest.mark.parametrize(
    ("flags", "status", "named"),
    [
        (set(), "problem", "no SSE4.2"),
        ({"sse4_2"}, "slow", "SSE4.2"),
        ({"sse4_2", "avx2"}, "slow", "AVX2"),
        ({"sse4_2", "avx2", "avx512f", "avx512_vnni"}, "ok", "AVX-512 VNNI"),
        ({"sse4_2", "avx2", "amx_bf16"}, "ok", "AMX"),
    ],
)
def test_processors(flags: set[str], status: str, named: str) -> None:
    found = check_processor(Processor("P", 4, 8, frozenset(flags)), "x86_64")
    assert (found.status, found.found.rpartition(", ")[2]) == (status, named)
    assert bool(found.advice) == (status != "ok")
    assert check_processor(Processor("P", 4, 8), "aarch64").status == "ok"


def test_kernels_need_a_compiler_or_an_image_that_has_them(tmp_path: Path) -> None:
    assert check_kernels("/usr/bin/c++", [tmp_path]).status == "ok"
    missing = check_kernels(None, [tmp_path / "nowhere", tmp_path])
    assert (missing.status, missing.found) == ("slow", "no C++ compiler")
    (tmp_path / "packed_matmul-0123.so").touch()
    assert check_kernels(None, [tmp_path / "nowhere", tmp_path]).status == "ok"


def test_what_is_short() -> None:
    assert [check_memory(size << 30, "container").status for size in (0, 2, 16)] == [
        "warning",
        "warning",
        "ok",
    ]
    assert check_memory(1 << 29, "machine").status == "problem"
    assert [check_shared_memory(size << 20).status for size in (64, 512)] == ["warning", "ok"]
    assert [check_files(limit, 1000).status for limit in (1024, 4096)] == ["warning", "ok"]
    assert [check_load(load, 2).status for load in (9.0, 0.5)] == ["slow", "ok"]


def test_versions_of_two_releases() -> None:
    one = {"openvino": "2026.4.0", "openvino-genai": "2026.4.1.0"}
    assert check_versions(one).status == "ok"
    assert check_versions(one | {"openvino-tokenizers": "2026.3.0"}).status == "problem"
    assert "missing: openvino" in check_versions(one | {"openvino": ""}).found


def test_directories(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_store(tmp_path / "a/b/responses.db").status == "ok"
    assert check_models(tmp_path / "models").status in ("ok", "warning")
    assert check_cache("").status == "slow"
    assert check_cache(str(tmp_path)).status == "ok"


def test_the_text_has_a_line_each_and_advice() -> None:
    made = report(
        [Finding("memory", "ok", "9 GB"), Finding("rest_port", "problem", "8000: in use", "another")]
    )
    assert not made.ok
    assert text(made).splitlines() == [
        "ok       memory     9 GB",
        "problem  rest_port  8000: in use",
        "                    -> another",
    ]


@pytest.mark.parametrize(("kernels", "speeds"), [(True, (5.2, 4.9)), (False, (4.6, 4.0))])
def test_sizes_of_models_follow_memory_and_speed_follows_bandwidth(
    kernels: bool, speeds: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ovserve.pull.recommend.have_kernels", lambda: kernels)
    found = check_models_of(Memory(int(3.9e9), "container"), 10e9)
    assert found.found.startswith(
        f"up to 3B in Q4_0 (at most {speeds[0]} tokens/s), 3B in Q4_K_M (at most {speeds[1]} tokens/s), 1B"
    )
    assert check_models_of(Memory(1 << 30), 10e9).status == "warning"
    least = min(size.needed for size in SIZES)
    assert fitting(Memory(int(least) - 1)) == []
    assert len(fitting(Memory(int(least) + 1))) == 1
    assert fitting(Memory(0)) == [*SIZES]


def test_the_bandwidth_is_measured() -> None:
    assert 1e8 < read_bandwidth() < 1e13


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.parameters} {size.form}")
def test_sizes_are_those_of_real_shapes(size: Size) -> None:
    """From the numbers in the models' configurations; the mix of Q4_K_M is llama.cpp's."""
    layers, width, inner, heads, kv_heads, head, vocabulary, tied = SHAPES[size.parameters]
    base = size.form.removesuffix("_M")
    output = "Q6_K" if base.startswith("Q4") else base

    def matrix(kind: str, columns: int, rows: int, name: str = "") -> Tensor:
        number = next(number for number, known in KINDS.items() if known.name == kind)
        block = KINDS[number]
        return Tensor(name, (columns, rows), number, Path(), 0, rows * columns // block.items * block.size)

    embedding = matrix(output if tied else base, width, vocabulary, EMBEDDING)
    tensors = [embedding, *([] if tied else [matrix(output, width, vocabulary, OUTPUT)])]
    for i in range(layers):
        finer = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        better = "Q6_K" if finer and size.form == "Q4_K_M" else base
        tensors += [
            matrix(base, width, heads * head), matrix(base, width, kv_heads * head),
            matrix(better, width, kv_heads * head), matrix(base, heads * head, width),
            matrix(base, width, inner), matrix(base, width, inner), matrix(better, inner, width),
        ]  # fmt: skip
    assert size.file == pytest.approx(sum(t.size for t in tensors) / 1e9, abs=0.02)
    for weights, exact in ((size.ours, True), (size.openvinos, False)):
        memory = converted_size(tensors, in_memory=not exact, exact=exact)
        unread = 0 if tied else converted_size([embedding], in_memory=not exact)
        assert weights.memory == pytest.approx(memory / 1e9, abs=0.02)
        assert weights.per_token == pytest.approx((memory - unread) / 1e9, abs=0.02)
    assert size.cache == pytest.approx(2 * layers * kv_heads * head / 1e3, abs=1)

"""Measures the memory that each further LoRA adapter of a language model costs, and how long its load takes.

    python -m benchmarks.adapters [--width 1024] [--layers 12]

The model is random, in float, and its adapters change q_proj and v_proj. Prints the row of docs/pull.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import httpx

from tests import lora
from tests.conftest import Server, start_process
from tests.http.test_lora import F32, GRAPH

ALIASES = ("one", "two", "three")
MEGABYTE = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", allow_abbrev=False)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        size = {"width": arguments.width, "layers": arguments.layers}
        lora.model(place / "base", **size)
        for seed, alias in enumerate(ALIASES):
            lora.adapter(place / f"loras/{alias}", seed, **size)
        listed = "".join(f' lora_adapters {{ alias: "{a}" path: "../loras/{a}" }}' for a in ALIASES)
        (place / "base/graph.pbtxt").write_text(GRAPH.format(options=F32 + listed))
        weights = (place / "base/openvino_model.bin").stat().st_size / MEGABYTE
        print(f"weights of {weights:.0f} MB in float; MB of memory by engine, each after an answer")
        server = start_process("--graphs_dir", str(place), timeout=300)
        try:
            _measure(server)
        finally:
            server.stop()


def _measure(server: Server) -> None:
    print("model  first answer  resident  private  share of what is shared")
    known: dict[int, str] = {}
    for name in ("base", *ALIASES):
        began = time.monotonic()
        body = {"model": name, "prompt": "hello world", "max_tokens": 6, "ignore_eos": True}
        httpx.post(f"{server.v3}/completions", json=body, timeout=120).raise_for_status()
        seconds = time.monotonic() - began
        for pid in _engines(server):
            known.setdefault(pid, name)
        pid = next(p for p, model in known.items() if model == name)
        resident, private, share = _memory(pid)
        print(f"{name:6} {seconds:10.2f} s {resident:9.0f} {private:8.0f} {share - private:8.0f}")
    print("all together, what is shared counted once:")
    print(f"{sum(_memory(pid)[2] for pid in known):.0f} MB of {len(known)} engines")


def _engines(server: Server) -> list[int]:
    """Return the engines, without the process that is prepared for the next one."""
    pids = server.children("ovserve.engine.worker.main")
    return [
        pid for pid in pids if b"prepare" not in Path(f"/proc/{pid}/cmdline").read_bytes() or _loaded(pid)
    ]


def _loaded(pid: int) -> bool:
    return ".bin" in Path(f"/proc/{pid}/maps").read_text()


def _memory(pid: int) -> tuple[float, float, float]:
    """Return MB resident, of it private, and the proportional share (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 / MEGABYTE for line in lines}
    return found["Rss"], found["Private_Clean"] + found["Private_Dirty"], found["Pss"]


if __name__ == "__main__":
    main()

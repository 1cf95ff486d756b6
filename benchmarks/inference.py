"""Plain models over HTTP and gRPC against the library's own limit, an AsyncInferQueue on the same model.

    python -m benchmarks.inference [--seconds 4] [--rounds 3] [--clients 1,8,32] [--wires http,grpc]

The models are the OCR classifier (about 1 ms) and detector (about 10 ms) that `ovserve pull ocr` fetches. In
each round the bare queue and the server over each wire run alternately, so all see the same machine. The client
is a process of its own on the same cores, with bodies prepared: HTTP by raw sockets with KServe's binary
extension, gRPC by grpc.aio with ready bytes. It prints inferences per second, the median of the rounds, the ratio
to the bare queue of the same round, and the CPU per inference: of the bare queue, of server and engine, and their
ratio, which other load on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ovserve.cli.serve import new_event_loop
from tests.conftest import ROOT, Server, start_process
from tests.inference.conftest import free_port

WARM = 0.5  # seconds before a load counts
MODELS = {"classifier": (1, 3, 48, 192), "detector": (1, 3, 320, 320)}


def bare(path: str, shape: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """Inferences per second, and CPU milliseconds of each, of an AsyncInferQueue that is always full; runs in a
    process of its own."""
    import numpy as np
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(path, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    queue = ov.AsyncInferQueue(compiled)
    given = np.random.default_rng(0).random(shape, np.float32)
    for _ in range(20):
        queue.start_async({0: given}, share_inputs=True)
    queue.wait_all()
    began, busy, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        queue.start_async({0: given}, share_inputs=True)
        count += 1
    queue.wait_all()
    return count / (time.perf_counter() - began), (time.process_time() - busy) / count * 1e3


async def http_client(host: str, model: str, body: bytes, head: int, until: float, warm: float) -> int:
    """One connection; returns the answers between `warm` and `until`."""
    name, port = host.split(":")
    reader, writer = await asyncio.open_connection(name, int(port), limit=1 << 24)
    request = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        f"Inference-Header-Content-Length: {head}\r\n\r\n"
    ).encode() + body
    count = 0
    while (now := time.monotonic()) < until:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        at = answer.lower().index(b"\r\ncontent-length: ") + 18
        await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
        count += now >= warm
    writer.close()
    return count


async def grpc_client(address: str, message: bytes, until: float, warm: float) -> int:
    import grpc

    count = 0
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        while (now := time.monotonic()) < until:
            await call(message)
            count += now >= warm
    return count


async def load(
    wire: str, address: str, model: str, shape: tuple[int, ...], clients: int, seconds: float
) -> float:
    import numpy as np

    raw = np.random.default_rng(0).random(shape, np.float32).tobytes()
    warm = time.monotonic() + WARM
    until = warm + seconds
    if wire == "http":
        tensor = {
            "name": "x",
            "datatype": "FP32",
            "shape": shape,
            "parameters": {"binary_data_size": len(raw)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        work = [http_client(address, model, head + raw, len(head), until, warm) for _ in range(clients)]
    else:
        from ovserve.protos import kserve_pb2 as pb

        request = pb.ModelInferRequest(model_name=model, raw_input_contents=[raw])
        request.inputs.add(name="x", datatype="FP32", shape=shape)
        message = request.SerializeToString()
        work = [grpc_client(address, message, until, warm) for _ in range(clients)]
    return sum(await asyncio.gather(*work)) / seconds


def child(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.inference", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def cpu_of(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(server: Server, grpc: str, arguments: argparse.Namespace) -> None:
    pids = [server.process.pid, *server.children("ovserve.engine.worker.main")]
    addresses = {"http": server.url.removeprefix("http://"), "grpc": grpc}
    print(
        f"{'model':11} {'clients':>7} {'bare/s':>8} {'wire':>5} {'served/s':>9} {'ratio':>6} {'bare ms':>8} {'CPU ms':>7} {'ratio':>6}"
    )
    for model, shape in MODELS.items():
        path, sides = str(ROOT / f"models/ocr/{model}/1/model.onnx"), ",".join(map(str, shape))
        for clients in map(int, arguments.clients.split(",")):
            rows: dict[str, list[tuple[float, ...]]] = {w: [] for w in arguments.wires.split(",")}
            for _ in range(arguments.rounds):
                limit, own = child("--bare", path, sides, str(arguments.seconds))
                for wire, found in rows.items():
                    before = cpu_of(pids)
                    told = (
                        "--load",
                        wire,
                        addresses[wire],
                        model,
                        sides,
                        str(clients),
                        str(arguments.seconds),
                    )
                    (rate,) = child(*told)
                    cpu = (cpu_of(pids) - before) / (rate * (arguments.seconds + WARM)) * 1e3
                    found.append((limit, rate, rate / limit, own, cpu, own / cpu))
            for wire, found in rows.items():
                limit, rate, ratio, own, cpu, by_cpu = (median(column) for column in zip(*found, strict=True))
                line = f"{model:11} {clients:7} {limit:8.0f} {wire:>5} {rate:9.0f} {ratio:6.2f}"
                print(f"{line} {own:8.2f} {cpu:7.2f} {by_cpu:6.2f}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        path, sides, seconds = sys.argv[2:]
        print(*bare(path, tuple(map(int, sides.split(","))), float(seconds)))
        return
    if sys.argv[1:2] == ["--load"]:
        wire, address, model, sides, clients, seconds = sys.argv[2:]
        shape = tuple(map(int, sides.split(",")))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            print(runner.run(load(wire, address, model, shape, int(clients), float(seconds))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--wires", default="http,grpc")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        entries = [{"config": {"name": m, "base_path": str(ROOT / f"models/ocr/{m}")}} for m in MODELS]
        config, port = Path(scratch) / "config.json", free_port()
        config.write_text(json.dumps({"model_config_list": entries}))
        server = start_process("--config_path", str(config), "--grpc_port", str(port))
        try:
            compare(server, f"127.0.0.1:{port}", arguments)
        finally:
            server.stop()


if __name__ == "__main__":
    main()

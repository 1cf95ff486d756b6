"""Plain models over HTTP and gRPC against the library's own limit, an AsyncInferQueue on the same model, and
against other servers of the same ONNX files.

    python -m benchmarks.inference [--seconds 4] [--rounds 3] [--clients 1,8,32] [--wires http,grpc] [--setup]
                                   [--models classifier,detector,recogniser] [--max_batch_size 8]
                                   [--peers least,fastapi,mlserver]

The models are those for OCR that `ovserve pull ocr` fetches: the classifier takes about 1 ms, the others about
10. In each round the bare queue and the servers over each wire run alternately, so all see the same machine.
The client is a process of its own on the same cores, with bodies prepared: HTTP by raw sockets with KServe's
binary extension, gRPC by grpc.aio with ready bytes. It prints inferences per second, the median of the rounds,
the ratio to the bare queue of the same round, and the CPU time per inference in ms: of the bare queue, of the
server, of its engine and of the client. Other load on the machine disturbs these less. "least" is a server
made with aiohttp that leaves out all that a server can leave out (`inference_least.py`). `--setup` installs
the peers.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import inference_peers
from ovserve.cli.serve import new_event_loop
from tests.conftest import ROOT, start_process
from tests.ports import free_port

WARM = 0.5  # seconds before a load counts
MODELS = {"classifier": (1, 3, 48, 192), "detector": (1, 3, 320, 320), "recogniser": (1, 3, 48, 320)}


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
) -> tuple[float, float]:
    """Answers per second, and the client's CPU milliseconds of each."""
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
    began = time.process_time()
    count = sum(await asyncio.gather(*work))
    return count / seconds, (time.process_time() - began) / (count * (seconds + WARM) / seconds) * 1e3


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


@dataclass
class Side:
    """A server over one wire. `engine` are the processes that infer, if they are not the server's own."""

    label: str
    wire: str
    address: str
    server: list[int]
    engine: list[int]


def compare(sides: list[Side], arguments: argparse.Namespace) -> None:
    print("| model | clients | side | per second | of bare | bare ms | server ms | engine ms | client ms |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    for model in arguments.models.split(","):
        path, shape = str(ROOT / f"models/ocr/{model}/1/model.onnx"), ",".join(map(str, MODELS[model]))
        for clients in map(int, arguments.clients.split(",")):
            rows: dict[str, list[tuple[float, ...]]] = {side.label: [] for side in sides}
            for number in range(arguments.rounds):
                limit, own = child("--bare", path, shape, str(arguments.seconds))
                for side in sides if number % 2 == 0 else sides[::-1]:
                    before = cpu_of(side.server), cpu_of(side.engine)
                    told = (
                        "--load",
                        side.wire,
                        side.address,
                        model,
                        shape,
                        str(clients),
                        str(arguments.seconds),
                    )
                    rate, client = child(*told)
                    count = rate * (arguments.seconds + WARM)
                    server = (cpu_of(side.server) - before[0]) / count * 1e3
                    engine = (cpu_of(side.engine) - before[1]) / count * 1e3
                    rows[side.label].append((rate, rate / limit, own, server, engine, client))
            for label, found in rows.items():
                rate, ratio, *ms = (median(column) for column in zip(*found, strict=True))
                times = " | ".join(f"{one:.2f}" for one in ms)
                print(f"| {model} | {clients} | {label} | {rate:.0f} | {ratio:.2f} | {times} |", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        path, sides, seconds = sys.argv[2:]
        print(*bare(path, tuple(map(int, sides.split(","))), float(seconds)))
        return
    if sys.argv[1:2] == ["--load"]:
        wire, address, model, sides, clients, seconds = sys.argv[2:]
        shape = tuple(map(int, sides.split(",")))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            print(*runner.run(load(wire, address, model, shape, int(clients), float(seconds))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--wires", default="http,grpc")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peers", default=",".join(inference_peers.KINDS))
    parser.add_argument("--setup", action="store_true", help="install the peers first")
    parser.add_argument("--max_batch_size", type=int, default=0, help="of dynamic batching; 0: none")
    arguments = parser.parse_args()
    if arguments.setup:
        inference_peers.setup()
    with tempfile.TemporaryDirectory() as scratch:
        batching = {"dynamic_batching": {"max_batch_size": arguments.max_batch_size}}
        extra = batching if arguments.max_batch_size else {}
        entries = [
            {"config": {"name": m, "base_path": str(ROOT / f"models/ocr/{m}"), **extra}} for m in MODELS
        ]
        config, port = Path(scratch) / "config.json", free_port()
        config.write_text(json.dumps({"model_config_list": entries}))
        server = start_process("--config_path", str(config), "--grpc_port", str(port))
        addresses = {"http": server.url.removeprefix("http://"), "grpc": f"127.0.0.1:{port}"}
        engine = server.children("ovserve.engine.worker.main")
        contenders = [
            Side(f"ovserve {wire}", wire, addresses[wire], [server.process.pid], engine)
            for wire in filter(None, arguments.wires.split(","))
        ]
        files = {model: str((ROOT / f"models/ocr/{model}/1/model.onnx").resolve()) for model in MODELS}
        peers = [inference_peers.start(name, files) for name in filter(None, arguments.peers.split(","))]
        running = [peer for peer in peers if peer is not None]
        try:
            contenders += [Side(peer.label, peer.wire, peer.address, peer.pids, []) for peer in running]
            compare(contenders, arguments)
        finally:
            for peer in running:
                peer.stop()
            server.stop()


if __name__ == "__main__":
    main()

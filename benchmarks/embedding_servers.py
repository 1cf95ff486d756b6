"""Sides of `benchmarks.embeddings` that are servers, and the client that asks them.

The client has a connection per client of the row, on uvloop and without asyncio's streams, because it runs on
the cores of the server: 0.05 ms per request instead of 0.25.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.processes import cost
from ovserve.cli.serve import new_event_loop
from tests.conftest import ROOT, Server, start_process

START_SECONDS = 180
HEAD = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass
class Turn:
    per_second: float
    cpu_ms: float  # per text
    note: str = ""


class Side(Protocol):
    name: str

    def turn(self, texts: list[str], clients: int) -> Turn: ...

    def stop(self) -> None: ...


class _Client(asyncio.Protocol):
    """One connection; it sends the next request when an answer is complete."""

    def __init__(self, requests: list[bytes], ended: asyncio.Future[None]) -> None:
        self._requests, self._ended = requests, ended
        self._answer = b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._ask()

    def _ask(self) -> None:
        if self._requests:
            self._transport.write(self._requests.pop())
            return
        self._transport.close()
        if not self._ended.done():
            self._ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        if b" 200 " not in head[:16]:
            self._ended.set_exception(RuntimeError(self._answer.decode()))
            self._transport.close()
            return
        head = head.lower()
        if len(body) < int(head.partition(b"content-length: ")[2].split()[0]):
            return
        self._answer = b""
        if b"connection: close" in head:  # llama.cpp's server after 100 requests
            self._transport.close()
            self._ended.set_result(None)
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(exc or RuntimeError("the server closed a connection"))


async def _ask_all(port: int, requests: list[bytes], clients: int) -> None:
    loop = asyncio.get_running_loop()

    async def ask() -> None:
        while requests:
            ended: asyncio.Future[None] = loop.create_future()
            await loop.create_connection(partial(_Client, requests, ended), "127.0.0.1", port)
            await ended

    await asyncio.gather(*(ask() for _ in range(clients)))


class Http:
    """A server, asked by as many connections as there are clients, one text each."""

    name = ""

    def __init__(self, port: int, path: str, pids: dict[str, int]) -> None:
        self._port, self._path, self._pids = port, path, pids

    def turn(self, texts: list[str], clients: int) -> Turn:
        bodies = [
            json.dumps({"model": "minilm", "input": t, "encoding_format": "base64"}).encode() for t in texts
        ]
        requests = [HEAD % (self._path.encode(), len(body)) + body for body in bodies]
        before, began = self._cpu(), time.perf_counter()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_ask_all(self._port, requests, clients))
        seconds = time.perf_counter() - began
        each = {name: (now - before[name]) / len(texts) * 1e3 for name, now in self._cpu().items()}
        note = ", ".join(f"{name} {ms:.2f}" for name, ms in each.items()) if len(each) > 1 else ""
        return Turn(len(texts) / seconds, sum(each.values()), note)

    def _cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each process so far."""
        return {name: cost(pid).cpu for name, pid in self._pids.items()}

    def stop(self) -> None:
        raise NotImplementedError


class Ovserve(Http):
    """This server."""

    name = "ovserve"

    def __init__(self) -> None:
        self._server: Server = start_process(
            "--model_name", "minilm", "--model_path", str(ROOT / "graphs/embeddings")
        )
        (engine,) = self._server.children("ovserve.engine.worker.main")
        pids = {"server": self._server.process.pid, "engine": engine}
        super().__init__(self._server.port, "/v3/embeddings", pids)

    def stop(self) -> None:
        self._server.stop()


class Process(Http):
    """A server whose process is started here."""

    def __init__(self, command: list[str], path: str) -> None:
        """`command` without the port, its last argument."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        super().__init__(port, path, {"server": self._process.pid})
        began = time.monotonic()
        while time.monotonic() - began < START_SECONDS:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with {self._process.returncode}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"it was not ready within {START_SECONDS} s")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Infinity(Process):
    """infinity's server with torch, asked in the same way."""

    name = "infinity"

    def __init__(self, python: Path, model: Path) -> None:
        """`python` is the environment's directory."""
        command = [str(python / "bin/infinity_emb"), "v2", "--model-id", str(model)]
        command += ["--served-model-name", "minilm", "--host", "127.0.0.1"]
        command += ["--engine", "torch", "--device", "cpu", "--no-bettertransformer", "--no-model-warmup"]
        super().__init__([*command, "--port"], "/embeddings")


class LlamaCpp(Process):
    """llama.cpp's server, as `benchmarks.peer_setup` builds it, with the model in f16."""

    name = "llama.cpp"

    def __init__(self, server: Path, model: Path, parallel: int, tokens: int) -> None:
        """`parallel` requests run at a time, each of up to `tokens`."""
        context = ["--parallel", str(parallel), "--ctx-size", str(parallel * tokens)]
        batch = ["--batch-size", str(parallel * tokens), "--ubatch-size", str(parallel * tokens)]
        command = [str(server), "--model", str(model), "--embeddings", "--pooling", "mean", *context, *batch]
        threads = ["--threads", str(os.cpu_count() or 1)]
        super().__init__([*command, *threads, "--host", "127.0.0.1", "--port"], "/v1/embeddings")


class Least(Process):
    """The least that a server made with aiohttp has to do, in one process."""

    name = "least"

    def __init__(self, model: Path) -> None:
        script = str(ROOT / "benchmarks/embedding_least.py")
        super().__init__([sys.executable, script, str(model)], "/v3/embeddings")

"""The least server of embeddings for `benchmarks.embeddings`: no queue bounds, keys, metrics, log or isolation.

    python benchmarks/embedding_least.py DIRECTORY PORT

aiohttp's handler decodes the body, threads in the same process tokenise and infer what waits, and the answer
has the vector alone. So no server made with aiohttp can be much faster for short texts, whatever it leaves
out.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from collections import deque
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import uvloop
from aiohttp import web

from ovserve.engine.host.cpu import properties_of
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.model import FastTokenizer

MOST = 32  # texts of a batch


class Body(msgspec.Struct):
    input: str


class Server:
    def __init__(self, directory: Path) -> None:
        pooled = models.pool(models.read(directory), "MEAN", True)
        self._cores = models.usable_cores()
        properties = properties_of("{}", "CPU")
        core = ov.Core()
        self._streams = core.compile_model(pooled, "CPU", {**properties, "NUM_STREAMS": self._cores})
        self._alone = core.compile_model(pooled, "CPU", {**properties, "PERFORMANCE_HINT": "LATENCY"})
        self._tokenizer = FastTokenizer(directory / "tokenizer.json")
        self._decode = msgspec.json.Decoder(Body).decode
        self._waiting: deque[tuple[str, asyncio.Future[bytes]]] = deque()
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop

    async def start(self, app: web.Application) -> None:
        self._loop = asyncio.get_running_loop()
        for _ in range(self._cores):
            threading.Thread(target=self._work, daemon=True).start()

    async def embed(self, request: web.Request) -> web.Response:
        text = self._decode(await request.read()).input
        answer: asyncio.Future[bytes] = self._loop.create_future()
        with self._changed:
            self._waiting.append((text, answer))
            self._changed.notify()
        return web.Response(body=await answer, content_type="application/json")

    def _work(self) -> None:
        stream, alone = self._streams.create_infer_request(), self._alone.create_infer_request()
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                size = min(MOST, -(-len(self._waiting) // self._cores))
                batch = [self._waiting.popleft() for _ in range(size)]
            rows = self._tokenizer.encode([text for text, _ in batch])
            ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
            mask = np.zeros_like(ids)
            for i, row in enumerate(rows):
                ids[i, : len(row)] = row
                mask[i, : len(row)] = 1
            request = alone if size == 1 else stream
            request.infer(
                {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)},
                share_inputs=True,
            )
            vectors = request.get_output_tensor(0).data
            made = [b'{"embedding":"' + base64.b64encode(vector.data) + b'"}' for vector in vectors]
            self._loop.call_soon_threadsafe(_answer, batch, made)


def _answer(batch: list[tuple[str, asyncio.Future[bytes]]], made: list[bytes]) -> None:
    for (_, answer), body in zip(batch, made, strict=True):
        if not answer.done():
            answer.set_result(body)


def main(directory: str, port: str) -> None:
    uvloop.install()
    server = Server(Path(directory))
    app = web.Application()
    app.on_startup.append(server.start)
    app.add_routes([web.post("/v3/embeddings", server.embed)])
    web.run_app(app, host="127.0.0.1", port=int(port), access_log=None)


if __name__ == "__main__":
    main(*sys.argv[1:])

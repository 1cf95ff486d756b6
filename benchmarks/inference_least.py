"""The least server of tensors for `benchmarks.inference`: no queue bounds, keys, metrics, log or isolation.

    python benchmarks/inference_least.py PORT NAME=FILE...

aiohttp's handler hands the body to an AsyncInferQueue of the same process. It checks nothing, so no server
made with aiohttp can be much faster for small models, whatever it leaves out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import openvino as ov
import uvloop
from aiohttp import web

LENGTH = "Inference-Header-Content-Length"


class Model:
    def __init__(self, name: str, file: str) -> None:
        compiled = ov.Core().compile_model(file, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
        self._name = name
        self._requests = [compiled.create_infer_request() for _ in range(2)]
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        for request in self._requests:
            request.set_callback(self._ended, None)
            self._free.put_nowait(request)
        self._output = compiled.output(0).any_name

    def _ended(self, answer: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> None:
        answer[0].call_soon_threadsafe(answer[1].set_result, None)

    async def infer(self, body: bytes, end: int) -> tuple[bytes, int]:
        (given,) = json.loads(body[:end])["inputs"]
        array = np.frombuffer(body, np.float32, offset=end).reshape(given["shape"])
        request, loop = await self._free.get(), asyncio.get_running_loop()
        ended = loop.create_future()
        request.set_callback(self._ended, (loop, ended))
        request.start_async({0: array}, share_inputs=True)
        await ended
        value = request.get_output_tensor(0).data
        output = {
            "name": self._output,
            "datatype": "FP32",
            "shape": value.shape,
            "parameters": {"binary_data_size": value.nbytes},
        }
        head = json.dumps({"model_name": self._name, "outputs": [output]}).encode()
        made = head + value.tobytes()
        self._free.put_nowait(request)
        return made, len(head)


def main(port: str, *files: str) -> None:
    uvloop.install()
    models: dict[str, Model] = {}

    async def infer(request: web.Request) -> web.Response:
        body, end = await request.read(), int(request.headers[LENGTH])
        made, length = await models[request.match_info["name"]].infer(body, end)
        return web.Response(body=made, headers={LENGTH: str(length)})

    async def load(app: web.Application) -> None:
        models.update({name: Model(name, file) for name, _, file in (f.partition("=") for f in files)})

    app = web.Application(client_max_size=1 << 26)
    app.on_startup.append(load)
    app.add_routes([web.post("/v2/models/{name}/infer", infer)])
    web.run_app(app, host="127.0.0.1", port=int(port), access_log=None, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The peers of `benchmarks.inference`, run by the Python of their own environment in .peers/.

    python benchmarks/inference_peer_apps.py fastapi PORT NAME=FILE...
    python benchmarks/inference_peer_apps.py mlserver PORT NAME=FILE...

Both run the files by onnxruntime, with a thread per inference and as many inferences at a time as there are
cores. `fastapi` is what one would write oneself: KServe's binary extension over HTTP, inferences in its pool of
threads. `mlserver` is MLServer with a runtime of its own; the port is that of its gRPC server.
"""

import asyncio
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CORES = os.cpu_count() or 1


def session(file: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def fastapi(port: int, files: dict[str, str]) -> None:
    import numpy as np
    import uvicorn
    from fastapi import FastAPI, Request, Response

    app, pool = FastAPI(), ThreadPoolExecutor(CORES)
    sessions = {name: session(file) for name, file in files.items()}

    def infer(name: str, body: bytes, end: int) -> tuple[bytes, int]:
        (given,) = json.loads(body[:end])["inputs"]
        array = np.frombuffer(body, np.float32, offset=end).reshape(given["shape"])
        run = sessions[name]
        outputs, raw = [], []
        for end_, value in zip(run.get_outputs(), run.run(None, {given["name"]: array}), strict=True):
            size = {"binary_data_size": value.nbytes}
            outputs.append({"name": end_.name, "datatype": "FP32", "shape": value.shape, "parameters": size})
            raw.append(value.tobytes())
        head = json.dumps({"model_name": name, "outputs": outputs}).encode()
        return b"".join([head, *raw]), len(head)

    @app.post("/v2/models/{name}/infer")
    async def serve(name: str, request: Request) -> Response:
        end = int(request.headers["inference-header-content-length"])
        loop = asyncio.get_running_loop()
        answer, length = await loop.run_in_executor(pool, infer, name, await request.body(), end)
        return Response(answer, headers={"Inference-Header-Content-Length": str(length)})

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=True)


def mlserver(port: int, files: dict[str, str]) -> None:
    from mlserver import MLServer, ModelSettings, Settings

    settings = Settings(
        host="127.0.0.1", grpc_port=port, http_port=0, metrics_port=0, metrics_endpoint=None, parallel_workers=0,
        metrics_dir=tempfile.mkdtemp(), grpc_max_message_length=64 << 20,
    )  # fmt: skip
    models = [
        ModelSettings(name=name, implementation=Onnx, parameters={"uri": file})
        for name, file in files.items()
    ]
    asyncio.run(MLServer(settings).start(models))


def _onnx() -> Any:
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec
    from mlserver.types import InferenceResponse

    class Onnx(MLModel):
        async def load(self) -> bool:
            self._session = session(str(self.settings.parameters.uri))
            self._pool = ThreadPoolExecutor(CORES)
            return True

        async def predict(self, payload: Any) -> Any:
            given = payload.inputs[0]
            loop = asyncio.get_running_loop()
            array = NumpyCodec.decode_input(given)
            values = await loop.run_in_executor(self._pool, self._session.run, None, {given.name: array})
            ends = self._session.get_outputs()
            outputs = [NumpyCodec.encode_output(e.name, v) for e, v in zip(ends, values, strict=True)]
            return InferenceResponse(model_name=self.name, outputs=outputs)

    return Onnx


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # next to this file are names that libraries have too
    kind, port_, *models_ = sys.argv[1:]
    if kind == "mlserver":
        Onnx = _onnx()
    {"fastapi": fastapi, "mlserver": mlserver}[kind](int(port_), dict(m.split("=", 1) for m in models_))

"""A server that computes nothing: `python benchmarks/embedding_null.py PORT`, for `benchmarks.embeddings`.

aiohttp on uvloop with one handler, which reads the body and answers with a constant one of the size of a
vector of MiniLM in base64.
"""

from __future__ import annotations

import json
import sys

import uvloop
from aiohttp import web

VECTOR = {"object": "embedding", "index": 0, "embedding": "A" * 2048}
ANSWER = json.dumps(
    {
        "object": "list",
        "data": [VECTOR],
        "model": "minilm",
        "usage": {"prompt_tokens": 16, "total_tokens": 16},
    }
).encode()


async def embeddings(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


def main(port: int) -> None:
    app = web.Application()
    app.router.add_post("/v3/embeddings", embeddings)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The least server of text for `benchmarks.compare --least`: no graph, queue bounds, keys, metrics, log, chat
template, stop strings or detokenizer.

    python -m benchmarks.text_least SPEC PORT

`SPEC` is the graph's TextSpec as JSON. aiohttp reads the request. A process of its own runs the loop of
`bare.py` and sends one frame per step. Each token is one SSE event, written to the socket directly. So no
server made with aiohttp can cost much less, whatever it leaves out.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import uvloop
from aiohttp import web

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Body(msgspec.Struct):
    prompt: str
    max_tokens: int


class Frame(msgspec.Struct, array_like=True):
    """The tokens of one step by request, escaped for a JSON string, and the requests that ended."""

    texts: list[tuple[int, bytes]]
    ended: list[tuple[int, int]]  # request, tokens of its prompt


def engine(spec: dict[str, Any], pipe: Connection) -> None:
    import openvino_genai as ov_genai

    from benchmarks.bare import Bare

    bare = Bare(spec)
    texts = [json.dumps(bytes(w).decode(errors="replace"))[1:-1].encode() for w in bare.tokenizer.get_vocab()]
    encode = msgspec.msgpack.Encoder().encode
    live: dict[int, Any] = {}
    pipe.send_bytes(b"ready")
    while True:
        while not live or pipe.poll():
            id_, prompt, tokens = msgspec.msgpack.decode(pipe.recv_bytes())
            config = ov_genai.GenerationConfig()
            config.max_new_tokens = tokens
            config.ignore_eos = True
            config.apply_chat_template = False
            ids = bare.tokenizer.encode(prompt).input_ids
            live[id_] = [bare.pipeline.add_request(id_, ids, config), tokens, ids.shape[1]]
        bare.pipeline.step()
        frame = Frame([], [])
        for id_, request in live.items():
            handle = request[0]
            if handle.can_read():
                for part in handle.read().values():
                    for token in part.generated_ids:
                        frame.texts.append((id_, texts[token]))
                        request[1] -= 1
                if not request[1]:
                    frame.ended.append((id_, request[2]))
        for id_, _ in frame.ended:
            del live[id_]
        if frame.texts:
            pipe.send_bytes(encode(frame))


class Stream:
    def __init__(self, transport: asyncio.WriteTransport, tokens: int, done: asyncio.Future[None]) -> None:
        self.transport, self.tokens, self.done = transport, tokens, done

    def text(self, text: bytes) -> None:
        event = (
            b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"smollm2",'
            b'"choices":[{"index":0,"text":"%b","finish_reason":null}]}\n\n' % text
        )
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def end(self, prompt_tokens: int) -> None:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": self.tokens}
        event = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": usage}).encode()
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        self.done.set_result(None)


class Server:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._decode = msgspec.json.Decoder(Body).decode
        self._frames = msgspec.msgpack.Decoder(Frame).decode
        self._streams: dict[int, Stream] = {}
        self._last = 0

    async def start(self, app: web.Application) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._step)
        os.set_blocking(self._pipe.fileno(), True)  # libuv has changed that

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = self._decode(await request.read())
        assert request.transport is not None
        done = asyncio.get_running_loop().create_future()
        self._last += 1
        self._streams[self._last] = Stream(request.transport, body.max_tokens, done)
        request.transport.write(HEAD)
        self._pipe.send_bytes(msgspec.msgpack.encode((self._last, body.prompt, body.max_tokens)))
        await done
        return _Written()

    def _step(self) -> None:
        frame = self._frames(self._pipe.recv_bytes())
        for id_, text in frame.texts:
            self._streams[id_].text(text)
        for id_, prompt_tokens in frame.ended:
            self._streams.pop(id_).end(prompt_tokens)


class _Written(web.StreamResponse):
    """An answer whose bytes are in the socket already, so that aiohttp has nothing left to write."""

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


def main(spec: str, port: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=engine, args=(json.loads(spec), theirs), daemon=True
    )
    process.start()
    theirs.close()
    ours.recv_bytes()
    print(process.pid, flush=True)
    uvloop.install()
    server = Server(ours)
    app = web.Application()
    app.on_startup.append(server.start)
    app.add_routes([web.post("/v3/completions", server.complete)])
    web.run_app(app, host="127.0.0.1", port=int(port), access_log=None, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])

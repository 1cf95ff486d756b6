"""Measures what one request and one token cost in Python, without a model. `make bench-micro`, about 20 seconds.

    python -m benchmarks.micro [--repeat 30]

Graph runs use the shipped graphs with an engine that answers at once, so what is left is ours. Each number
is one operation in microseconds: the least and the median of `--repeat` batches. On a busy machine trust the
least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

from msgspec import structs

from ovserve.access import as_system
from ovserve.api.openai import ENDPOINTS
from ovserve.api.openai.operation import Writer
from ovserve.calculators.shipped import MODULES
from ovserve.cli.serve import new_event_loop
from ovserve.engine.admission.text import TextAdmission
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.health import Health
from ovserve.engine.client.process import EngineProcess
from ovserve.engine.client.state import EngineState, RestartPolicy
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.frames import FrameDecoder, encode
from ovserve.engine.protocol.messages import Accepted, FromEngine, StepItem, Steps
from ovserve.engine.protocol.specs import TextSpec
from ovserve.graph import Registry
from ovserve.graph.graph import Graph
from ovserve.kinds.payload import HttpPayload
from ovserve.kinds.text.node import decode as decode_payload
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Content, Parsed
from ovserve.llm.request import Delta, GenerateRequest
from ovserve.sandbox.images.loader import Media
from ovserve.sandbox.templates import Templates
from ovserve.serving.loader import check_graph
from ovserve.serving.servable import Servable
from tests.conftest import ROOT

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FRAME_ITEMS = 64
MANY_TOKENS = 1000
MODEL = ModelContext(template=ChatTemplate(CHATML), max_length=8192)


class _Stream:
    """A DeltaStream that never waits; `yielding`: once per delta it lets the loop turn, like an engine."""

    def __init__(self, deltas: int, yielding: bool) -> None:
        self._left = deltas
        self._first = True
        self._yielding = yielding

    async def next(self) -> Delta:
        if self._yielding:
            await asyncio.sleep(0)
        if self._first:
            self._first = False
            return Delta(prompt_tokens=20, max_tokens=100)
        self._left -= 1
        done = not self._left
        return Delta(" word", 1, "length" if done else None, last=done)

    def abort_if_running(self) -> None:
        pass


class _Engine:
    """A Generator whose requests get `deltas` deltas at once."""

    def __init__(self, deltas: int, yielding: bool = False) -> None:
        self.deltas, self.yielding = deltas, yielding

    async def generate(self, request: GenerateRequest) -> _Stream:
        return _Stream(self.deltas, self.yielding)


def chat_body(size: int) -> bytes:
    """A streamed chat request of about `size` bytes, in messages of about 800."""
    sentence = 'The quick brown fox jumps over the lazy dog, and "they" said: né. '
    turns = max(1, (size - 150) // 850)
    messages = [
        {
            "role": "assistant" if i % 2 else "user",
            "content": (sentence * 12)[: max(20, (size - 150) // turns - 40)],
        }
        for i in range(turns)
    ]
    return json.dumps(
        {"model": "m", "messages": messages, "stream": True, "temperature": 0, "max_tokens": 100}
    ).encode()


async def _nothing(engine: EngineClient[Any, Any]) -> None:
    """Do nothing: no engine was acquired."""


async def answer_once(graph: Graph, engine: _Engine, templates: Templates, body: bytes) -> None:
    side = {"llm": LlmResources(cast(TextAdmission, engine), MODEL, templates, Media())}
    missing = graph.plan.side_packets - side.keys()
    servable = Servable("m", graph, {}, side | dict.fromkeys(missing), _nothing)
    payload = HttpPayload("chat/completions", body, head=await servable.bodies.admit(body))
    async with servable.start(payload) as answer:
        await answer.first()
        while await answer.next() is not None:
            pass


async def per_call(call: Callable[[], Awaitable[object]], batch: int, repeat: int) -> list[float]:
    """Microseconds per call, one number per batch."""
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        for _ in range(batch):
            await call()
        found.append((time.perf_counter() - began) / batch * 1e6)
    return found


def per_plain_call(call: Callable[[], object], batch: int, repeat: int) -> list[float]:
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        for _ in range(batch):
            call()
        found.append((time.perf_counter() - began) / batch * 1e6)
    return found


async def graph_costs(
    directory: Path, templates: Templates, repeat: int
) -> tuple[list[float], list[float], list[float]]:
    """One run with a single delta; one token at once; one token after a turn of the loop."""
    graph, _ = check_graph(directory, Registry(MODULES))
    body = chat_body(400)
    one = await per_call(lambda: answer_once(graph, _Engine(1), templates, body), 50, repeat)
    fixed = median(one)
    tokens = []
    for yielding in (False, True):
        many = await per_call(
            partial(answer_once, graph, _Engine(MANY_TOKENS, yielding), templates, body), 1, repeat
        )
        tokens.append([(m - fixed) / (MANY_TOKENS - 1) for m in many])
    graph.close()
    return one, tokens[0], tokens[1]


class _Process:
    """An EngineProcess that swallows what it is sent."""

    pid, sent, memory_limit = os.getpid(), 0, None

    def send(self, message: object) -> None:
        pass


async def dispatch_costs(repeat: int) -> tuple[list[float], list[float]]:
    """A step's frame of 64 items: decoded alone, and decoded, put into 64 mailboxes and read from them."""
    chat = ENDPOINTS["chat/completions"]
    spec, process = TextSpec("x"), cast(EngineProcess, _Process())
    client = TextClient(spec)
    client._process = process
    client._become(EngineState("ready"))
    client._health = Health(process, spec, RestartPolicy())
    made = chat.to_request(chat.decode(chat_body(400)), MODEL)
    request = structs.replace(made, prompts=("Say hello",), conversation=None)
    streams = [await client.generate(request) for _ in range(FRAME_ITEMS)]
    for number, stream in enumerate(streams, start=1):
        client._on_message(Accepted(number, 20, 100))
        client._on_message(Steps([StepItem(number, " word", 1, None)]))
        assert [(await stream.next()).tokens for _ in range(2)] == [0, 1]  # the admission comes with a word
    frame = encode(Steps([StepItem(i + 1, " word", 1, None) for i in range(FRAME_ITEMS)]))
    frames: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)

    async def dispatch() -> None:
        for message in frames.feed(frame):
            client._on_message(message)  # type: ignore[arg-type]
        for stream in streams:
            assert (await stream.next()).tokens == 1

    decoded = per_plain_call(lambda: frames.feed(frame), 200, repeat)
    return decoded, await per_call(dispatch, 200, repeat)


def wire_costs(repeat: int) -> dict[str, list[float]]:
    chat = ENDPOINTS["chat/completions"]
    found: dict[str, list[float]] = {}
    for size in (3_600, 64_000):
        body = chat_body(size)
        decoded = chat.decode(body)
        found[f"decode a chat body of {len(body) / 1000:.1f} KB"] = per_plain_call(
            partial(chat.decode, body), 20, repeat
        )
        found[f"request and conversation of {len(body) / 1000:.1f} KB"] = per_plain_call(
            partial(chat.to_request, decoded, MODEL), 20, repeat
        )
    writer = cast(Writer, chat.writer(chat.to_request(chat.decode(chat_body(400)), MODEL)))
    writer.chunk(Parsed(prompt_tokens=20))
    parsed = Parsed((Content(" word"),), 1)
    found["one chat SSE chunk"] = per_plain_call(lambda: writer.chunk(parsed), 1000, repeat)
    return found


async def request_costs(templates: Templates, repeat: int) -> list[float]:
    """Measure the CPU time from a body's bytes to the input of the engine and the template."""
    body, llm, found = (
        chat_body(400),
        LlmResources(cast(TextAdmission, _Engine(1)), MODEL, templates, Media()),
        [],
    )
    for _ in range(repeat):
        began = time.process_time()
        for _ in range(500):
            head = await llm.bodies.admit(body)
            await decode_payload(HttpPayload("chat/completions", body, head=head)).to_request(llm)
        found.append((time.process_time() - began) / 500 * 1e6)
    return found


async def template_costs(templates: Templates, repeat: int) -> dict[str, list[float]]:
    """There and back: the loop is free meanwhile."""
    chat = ENDPOINTS["chat/completions"]
    found: dict[str, list[float]] = {}
    for size in (400, 3_600, 64_000):
        body = chat_body(size)
        conversation = chat.to_request(chat.decode(body), MODEL).conversation
        assert MODEL.template is not None
        assert conversation is not None
        found[f"template of {len(body) / 1000:.1f} KB, in its process"] = await per_call(
            partial(templates.render, MODEL.template, conversation), 20, repeat
        )
    return found


async def main(repeat: int) -> None:
    rows: dict[str, list[float]] = {}
    templates = Templates()
    for name, directory in (("five nodes", "smollm2"), ("one node", "single_node")):
        with as_system():
            run, token, yielding = await graph_costs(ROOT / "graphs" / directory, templates, repeat)
        rows[f"graph of {name}: one chat, one token"] = run
        rows[f"graph of {name}: one more token"] = token
        rows[f"graph of {name}: one more token, waited for"] = yielding
    decoded, dispatched = await dispatch_costs(repeat)
    rows["a frame of 64 items, decoded"] = decoded
    rows["a frame of 64 items, decoded, to 64 mailboxes, read"] = dispatched
    rows["a short chat request, body to GenerateRequest, CPU"] = await request_costs(templates, repeat)
    rows |= wire_costs(repeat)
    rows |= await template_costs(templates, repeat)
    await templates.stop()
    lines = ["| operation | least, us | median, us |", "|---|--:|--:|"]
    lines += [f"| {name} | {min(values):.1f} | {median(values):.1f} |" for name, values in rows.items()]
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    lines += [
        "",
        f"Made by `python -m benchmarks.micro` on {time.strftime('%Y-%m-%d')}: {repeat} batches each, "
        f"{loop}, Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}.",
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro")
    parser.add_argument("--repeat", type=int, default=30, help="batches per operation")
    chosen = parser.parse_args()
    with as_system(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(chosen.repeat))
    sys.exit(0)

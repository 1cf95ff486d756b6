"""A server process with a configuration file whose graphs a test edits, and clients that never stop asking.

`TRIGGERS` are the ways to make a server take up what was edited. Each runs the whole matrix of test_matrix.py:
a new way is one more entry.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from ovserve.protos import tensorflow_serving_pb2 as tfs
from tests.conftest import Server, eventually, script_graph, start_process
from tests.ports import free_port

WORDS = 6  # of an answer; each names the version that made it
STEP_SECONDS = 0.02


@dataclass(frozen=True)
class Trigger:
    """`flags` are for the server's start; `fire` returns when the server has been told, not when it is done."""

    flags: tuple[str, ...]
    fire: Callable[[Site], Awaitable[None]]
    grpc: bool = False


async def _post(site: Site) -> None:
    answer = await site.http.post("/v1/config/reload")
    assert answer.status_code in (200, 201, 412), answer.text


async def _nothing(site: Site) -> None:
    return None


async def _hangup(site: Site) -> None:
    site.server.process.send_signal(signal.SIGHUP)


async def _tensorflow_serving(site: Site) -> None:
    async with grpc.aio.insecure_channel(site.grpc_address) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=tfs.ReloadConfigResponse.FromString,
        )
        status = (await call(tfs.ReloadConfigRequest())).status
    assert grpc_code(status.error_code) in ("OK", "FAILED_PRECONDITION"), status.error_message


async def _triton(site: Site) -> None:
    """By name, as Triton's clients must: load what is configured, unload what no longer is.

    In this order, so that a model under a new name finds its engine, which ends with the last name.
    """
    listed = json.loads((site.root / "config.json").read_text())["model_config_list"]
    wanted = [entry["config"]["name"] for entry in listed]
    async with triton.InferenceServerClient(site.grpc_address) as client:
        for name in wanted:
            try:
                await client.load_model(name)
            except InferenceServerException as exc:
                if exc.status() != "StatusCode.FAILED_PRECONDITION":
                    raise
        for model in (await client.get_model_repository_index()).models:
            if (
                model.name not in wanted
                and model.reason != "unloaded on request"
                and model.state != "UNLOADING"
            ):
                await client.unload_model(model.name)


def grpc_code(number: int) -> str:
    return next(code.name for code in grpc.StatusCode if code.value[0] == number)


ON_REQUEST = ("--file_system_poll_wait_seconds", "0")
TRIGGERS = {
    "rest": Trigger(ON_REQUEST, _post),
    "tensorflow_serving": Trigger(ON_REQUEST, _tensorflow_serving, grpc=True),
    "triton": Trigger(ON_REQUEST, _triton, grpc=True),
    "watcher": Trigger(("--file_system_poll_wait_seconds", "0.1"), _nothing),
}
HANGUP = Trigger(ON_REQUEST, _hangup)


def script(version: str, **more: Any) -> str:
    return json.dumps(
        {"step_seconds": STEP_SECONDS, "replies": [{"text": " ".join([version] * WORDS)}], **more}
    )


@dataclass
class Asked:
    """One request and how it ended."""

    model: str
    stream: bool
    started: float
    status: int = 0
    text: str = ""
    whole: bool = False  # it came to its proper end

    @property
    def version(self) -> str:
        """The one version that answered; fails for a mixture or a piece."""
        words = self.text.split()
        assert self.whole, f"cut: {self}"
        assert len(words) == WORDS, f"not a whole answer: {self}"
        assert len(set(words)) == 1, f"mixed: {self}"
        return words[0]


@dataclass
class Site:
    server: Server
    root: Path
    trigger: Trigger
    http: httpx.AsyncClient
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    grpc_address: str = ""

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.server.url, timeout=230, limits=limits)

    async def hang_up(self) -> None:
        """Close the connections that are kept; the next request makes one."""
        await self.http.aclose()
        self.http = self.client()

    # -- editing

    def write_graph(self, folder: str, text: str) -> Path:
        """A graph directory whose model is `text`."""
        return script_graph(self.root / folder, text)

    def model_file(self, folder: str) -> Path:
        return self.root / folder / "model.script.json"

    async def reset(self, **folders: str) -> None:
        """Graphs and versions as at the start, in force."""
        for name, version in folders.items():
            self.write_graph(name, script(version))
        self.configure(**{name: name for name in folders})
        await self.fire()
        for name, version in folders.items():
            await self.until(name, "AVAILABLE")
            await self.until_version(name, version)
        await self.until_engines(len(folders))

    async def until_version(self, name: str, version: str, seconds: float = 230) -> None:
        deadline = time.monotonic() + seconds
        while (got := (await self.ask(name, stream=False)).version) != version:
            assert time.monotonic() < deadline, f"{name} still answers {got}"

    def configure(self, **folders: str) -> None:
        """What is served: names and their folders. Written as an editor does, in one step."""
        entries = [{"config": {"name": n, "base_path": f}} for n, f in folders.items()]
        new = self.root / "config.json.new"
        new.write_text(json.dumps({"model_config_list": entries}, indent=1))
        new.replace(self.root / "config.json")

    async def fire(self) -> None:
        await self.trigger.fire(self)

    # -- looking

    async def states(self) -> dict[str, tuple[str, str, str]]:
        """Per name: state, error code, error message."""
        document = (await self.http.get("/v1/config")).json()
        found = {}
        for name, model in document.items():
            (version,) = model["model_version_status"]
            assert version["version"] == "1"
            found[name] = (version["state"], *version["status"].values())
        return found

    async def until(self, name: str, state: str, code: str = "OK", seconds: float = 230) -> str:
        """Wait for a state; its message."""
        deadline = time.monotonic() + seconds
        while True:
            got = (await self.states()).get(name, ("absent", "", ""))
            if got[:2] == (state, code):
                return got[2]
            assert time.monotonic() < deadline, f"{name} never became {state} {code}: {got}"
            await asyncio.sleep(0.02)

    def loads(self, name: str) -> int:
        """How often it came into force, by the log."""
        return sum(f" {name} is served, loaded in " in line for line in self.server.errors)

    def engines(self) -> set[int]:
        return set(self.server.children("ovserve.engine.worker.main"))

    async def until_engines(self, count: int, seconds: float = 230) -> set[int]:
        deadline = time.monotonic() + seconds
        while len(pids := self.engines()) != count:
            assert time.monotonic() < deadline, f"expected {count} engines, got {pids}"
            await asyncio.sleep(0.02)
        return pids

    # -- asking

    async def ask(self, model: str, *, stream: bool) -> Asked:
        asked = Asked(model, stream, time.monotonic())
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "x"}]}
        async with self.http.stream("POST", "/v3/chat/completions", json=body) as answer:
            asked.status = answer.status_code
            raw = (await answer.aread()).decode()
        if asked.status == 200 and stream:
            asked.text = "".join(re.findall(r'"content":"([^"]*)"', raw))
            asked.whole = raw.endswith("data: [DONE]\n\n")
        elif asked.status == 200:
            asked.text = json.loads(raw)["choices"][0]["message"]["content"]
            asked.whole = True
        else:
            asked.text = raw
        return asked

    @asynccontextmanager
    async def clients(self, *models: str) -> AsyncIterator[Clients]:
        """Per model two that stream and one that does not, each asking again and again."""
        running = Clients(self)
        tasks = [
            asyncio.create_task(running.run(model, stream))
            for model in models
            for stream in (True, True, False)
        ]
        try:
            await running.round()
            yield running
        finally:
            running.going = False
            await asyncio.gather(*tasks)


@dataclass
class Clients:
    site: Site
    going: bool = True
    answers: list[Asked] = field(default_factory=list)
    under_way: int = 0
    turns: dict[tuple[str, int], int] = field(default_factory=dict)

    async def run(self, model: str, stream: bool) -> None:
        me = (model, len(self.turns))
        self.turns[me] = 0
        while self.going:
            self.answers.append(answer := await self.site.ask(model, stream=stream))
            self.turns[me] += 1
            if answer.status != 200:
                await asyncio.sleep(STEP_SECONDS)

    async def round(self) -> None:
        """Until each client has one more answer that it asked for after now, and is in the next one."""
        before = dict(self.turns)
        await eventually(
            lambda: self.turns and all(self.turns[me] >= before.get(me, 0) + 2 for me in self.turns)
        )

    def of(self, model: str) -> list[Asked]:
        return sorted((a for a in self.answers if a.model == model), key=lambda a: a.started)

    def versions(self, model: str) -> list[str]:
        """In the order they were asked for; all must have been answered, whole, by one version each."""
        assert {a.status for a in self.of(model)} == {200}, [a for a in self.of(model) if a.status != 200]
        return [a.version for a in self.of(model)]


@asynccontextmanager
async def site(root: Path, trigger: Trigger, *flags: str, **folders: str) -> AsyncIterator[Site]:
    """`folders`: the graphs written and served at first, name and version."""
    root.mkdir()  # noqa: ASYNC240  nothing runs yet
    made = Site(None, root, trigger, httpx.AsyncClient())  # type: ignore[arg-type]
    for name, version in folders.items():
        made.write_graph(name, script(version))
    made.configure(**{name: name for name in folders})
    more = ["--config_path", str(root / "config.json"), "--response_store", "off", *trigger.flags, *flags]
    if trigger.grpc:
        port = free_port()
        made.grpc_address = f"127.0.0.1:{port}"
        more += ["--grpc_port", str(port)]
    made.server = await asyncio.to_thread(start_process, *more)
    made.http = made.client()
    try:
        yield made
    finally:
        await made.http.aclose()
        await asyncio.to_thread(made.server.stop)

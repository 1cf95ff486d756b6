"""The clients: each kind asks, judges its answer, and asks again until the time is over."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.soak.site import CHAT, SCRIPT, Site

WORDS = ("the", "river", "runs", "under", "an", "old", "stone", "bridge", "where", "boats", "count", "days")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
RELOAD_SECONDS = 10.0


@dataclass
class Traffic:
    site: Site
    http: httpx.AsyncClient
    until: float  # time.monotonic()
    random: random.Random = field(default_factory=lambda: random.Random(7))
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # seconds to the first word, since `taken`

    async def run(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._stream, self._stream, self._whole, self._tools, self._long, self._leave, self._script,
            self._reload,
        ]  # fmt: skip
        await asyncio.gather(*(self._again(kind) for kind in kinds))

    def taken(self) -> list[float]:
        """The latencies since the last call."""
        latencies, self.latencies = self.latencies, []
        return latencies

    async def _again(self, kind: Callable[[], Awaitable[None]]) -> None:
        name = kind.__name__.strip("_")
        while time.monotonic() < self.until:
            try:
                await kind()
                self.done[name] += 1
            except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
                self.wrong.append(f"{name}: {type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1)

    def _body(self, text: str, **more: Any) -> dict[str, Any]:
        return {
            "model": CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 24,
            "temperature": 0.7, "seed": self.random.randrange(1000), **more,
        }  # fmt: skip

    def _text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=words))

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.http.post("/v3/chat/completions", json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return dict(answer.json()["choices"][0])

    async def _stream(self) -> None:
        began, last = time.monotonic(), ""
        body = self._body(self._text(20), stream=True)
        async with self.http.stream("POST", "/v3/chat/completions", json=body) as answer:
            first = True
            async for line in answer.aiter_lines():
                if first and '"content":"' in line and '"content":""' not in line:
                    first = False
                    self.latencies.append(time.monotonic() - began)
                last = line or last
        assert last == "data: [DONE]", last

    async def _whole(self) -> None:
        choice = await self._post(self._body(self._text(20)))
        assert choice["finish_reason"] in ("stop", "length")

    async def _tools(self) -> None:
        choice = await self._post(
            self._body("What is the weather?", tools=[TOOL], tool_choice="required", max_tokens=64)
        )
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments)["city"] in ("Paris", "Rome", "Oslo"), arguments

    async def _long(self) -> None:
        choice = await self._post(self._body(self._text(self.random.randrange(500, 2500)), max_tokens=8))
        assert choice["finish_reason"] in ("stop", "length")

    async def _leave(self) -> None:
        """After a few words, or before any."""
        body = self._body(self._text(200), stream=self.random.random() < 0.7, max_tokens=400)
        asking = asyncio.create_task(self._read(body))
        await asyncio.wait({asking}, timeout=self.random.random() * 2)
        asking.cancel()
        await asyncio.wait({asking})

    async def _read(self, body: dict[str, Any]) -> None:
        async with self.http.stream("POST", "/v3/chat/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                pass

    async def _script(self) -> None:
        """Over the graph whose engine is replaced: every answer is of one version."""
        choice = await self._post(self._body("hi") | {"model": SCRIPT, "max_tokens": 100})
        words = choice["message"]["content"].split()
        assert len(words) == 20, words
        assert len(set(words)) == 1, words

    async def _reload(self) -> None:
        await asyncio.sleep(min(RELOAD_SECONDS, max(0.0, self.until - time.monotonic())))
        self.site.change_engine()
        if self.done["reload"] % 3 == 2:
            self.site.change_graph()
        answer = await self.http.post("/v1/config/reload")
        assert answer.status_code == 201, f"{answer.status_code}: {answer.text}"

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

from benchmarks.soak.site import CHAT, RERANK, SCRIPT, Site

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
RERANK_SECONDS = 0.1  # between two requests: a tiny model would take one core from all others
BEGINNINGS = (
    "1, 2, 3, 4, 5, 6, 7, 8,", "10, 20, 30, 40, 50, 60,", "2, 4, 6, 8, 10, 12,", "5, 10, 15, 20, 25, 30,",
    "11, 12, 13, 14, 15, 16,", "100, 200, 300, 400, 500,", "January, February, March, April, May,",
    "one, two, three, four, five,",
)  # fmt: skip
SURE = -0.5  # log probability of a word: any other has -0.9 at most
LEAST_SURE = 3  # words


@dataclass
class Traffic:
    site: Site
    http: httpx.AsyncClient
    until: float  # time.monotonic()
    random: random.Random = field(default_factory=lambda: random.Random(7))
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # seconds to the first word, since `taken`
    truths: list[Truth] = field(default_factory=list)
    version: int = 0  # of the script that every answer from now on has, or a later one

    @property
    def answers(self) -> int:
        return sum(self.done.values())

    async def prepare(self) -> None:
        self.version = self.site.first
        self.truths = await truths(self.http)

    async def run(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._stream, self._stream, self._whole, self._tools, self._long, self._leave, self._script,
            self._rerank, self._reload,
        ]  # fmt: skip
        if "embeddings" in self.site.random_lengths:
            kinds.append(self._embed)
        if "text_to_speech" in self.site.random_lengths:
            kinds.append(self._speak)
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

    async def _post(self, body: dict[str, Any], endpoint: str = "chat/completions") -> dict[str, Any]:
        answer = await self.http.post(f"/v3/{endpoint}", json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return dict(answer.json()["choices"][0])

    async def _stream(self) -> None:
        began, chunks = time.monotonic(), list[dict[str, Any]]()
        body = self._body(self._text(20), stream=True, stream_options={"include_usage": True})
        last = ""
        async with self.http.stream("POST", "/v3/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line.removeprefix("data: ")))
                    if began and any(c["delta"].get("content") for c in chunks[-1]["choices"]):
                        self.latencies.append(time.monotonic() - began)
                        began = 0.0
                last = line or last
        assert last == "data: [DONE]", last
        ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        used = chunks[-1]["usage"]["completion_tokens"]
        assert ends in (["stop"], ["length"]), ends
        assert used == 24 if ends == ["length"] else used <= 24, (ends, used)

    async def _whole(self) -> None:
        """Check that sure continuations are the same among any other requests."""
        truth = self.random.choice(self.truths)
        choice = await self._post(truth.body(), "completions")
        assert choice["text"] == truth.text, (truth, choice["text"])

    async def _tools(self) -> None:
        choice = await self._post(
            self._body("What is the weather?", tools=[TOOL], tool_choice="required", max_tokens=64)
        )
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments)["city"] in ("Paris", "Rome", "Oslo"), arguments

    async def _long(self) -> None:
        choice = await self._post(self._body(self._text(self.random.randrange(500, 2500)), max_tokens=8))
        assert choice["finish_reason"] in ("stop", "length")

    async def _embed(self) -> None:
        body = {"model": "embeddings", "input": self._text(self.random.randrange(1, 200))}
        answer = await self.http.post("/v3/embeddings", json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        assert len(answer.json()["data"]) == 1

    async def _rerank(self) -> None:
        await asyncio.sleep(RERANK_SECONDS)
        texts = [self._text(self.random.randrange(1, 60)) for _ in range(3)]
        body = {"model": RERANK, "query": texts[0], "documents": texts[1:]}
        answer = await self.http.post("/v3/rerank", json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        assert len(answer.json()["results"]) == 2

    async def _speak(self) -> None:
        body = {"model": "text_to_speech", "input": f"{self._text(self.random.randrange(3, 30))}."}
        answer = await self.http.post("/v3/audio/speech", json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"

    async def _leave(self) -> None:
        """Leave after a few words, or before any."""
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
        """Ask the graph whose engine is replaced: every answer is of one version."""
        oldest = self.version
        choice = await self._post(self._body("hi") | {"model": SCRIPT, "max_tokens": 100})
        words = choice["message"]["content"].split()
        assert len(words) == 20, words
        assert len(set(words)) == 1, words
        assert int(words[0].removeprefix("v")) >= oldest, (words, oldest)

    async def _reload(self) -> None:
        await asyncio.sleep(min(RELOAD_SECONDS, max(0.0, self.until - time.monotonic())))
        version = self.site.change_engine()
        if self.done["reload"] % 3 == 2:
            self.site.change_graph()
        answer = await self.http.post("/v1/config/reload")
        assert answer.status_code == 201, f"{answer.status_code}: {answer.text}"
        self.version = version


@dataclass(frozen=True)
class Truth:
    """The continuation of a text, as far as the model is sure of it."""

    beginning: str
    text: str
    tokens: int

    def body(self) -> dict[str, Any]:
        return completion(self.beginning, self.tokens)


def completion(beginning: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": CHAT, "prompt": beginning, "max_tokens": tokens, "temperature": 0, **more}


async def truths(http: httpx.AsyncClient) -> list[Truth]:
    """Find continuations that hold under load, while nothing else runs.

    The numbers of a step depend a little on what else is in it, so a truth has only words that are far ahead of
    all others.
    """
    found = []
    for beginning in BEGINNINGS:
        answer = await http.post("/v3/completions", json=completion(beginning, 16, logprobs=1))
        assert answer.status_code == 200, answer.text
        sureness = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        sure = next((i for i, each in enumerate(sureness) if each < SURE), len(sureness))
        if sure >= LEAST_SURE:
            answer = await http.post("/v3/completions", json=completion(beginning, sure))
            found.append(Truth(beginning, answer.json()["choices"][0]["text"], sure))
    assert found, "the model is sure of nothing"
    return found

"""Clients that stream answers side by side, and how each of their requests ended."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

DONE, ERROR_EVENT, CUT = "done", "error event", "cut"


@dataclass
class Ended:
    """How a request ended: DONE, ERROR_EVENT, CUT, or its status if that is not 200. Times in seconds."""

    how: str
    began: float
    ended: float
    text: str = ""
    begun: bool = False  # whether a byte of the answer came


@dataclass
class Load:
    """`clients` threads that ask until `stop`. Requests are retried by no one."""

    url: str
    clients: int = 8
    body: dict[str, object] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(self.clients)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def count(self, since: float = 0.0) -> Counter[str]:
        return Counter(one.how for one in list(self.ended) if one.began >= since)

    def failed(self) -> list[Ended]:
        return [one for one in list(self.ended) if one.how != DONE]

    def _run(self, number: int) -> None:
        with httpx.Client(timeout=230, limits=httpx.Limits(max_keepalive_connections=1)) as client:
            while not self._stop.is_set():
                self.ended.append(ask(client, self.url, {"user": f"client {number}", **self.body}))
                if self.ended[-1].how != DONE:
                    time.sleep(0.05)


def ask(
    client: httpx.Client, url: str, extra: dict[str, object], headers: dict[str, str] | None = None
) -> Ended:
    """Stream one answer."""
    body = {"model": "words", "messages": [{"role": "user", "content": "go"}], "stream": True, **extra}
    made = Ended(CUT, time.monotonic(), 0.0)
    try:
        with client.stream("POST", f"{url}/v3/chat/completions", json=body, headers=headers) as answer:
            if answer.status_code != 200:
                made.how, made.text = str(answer.status_code), answer.read().decode(errors="replace")[:300]
            else:
                _read(answer, made)
    except httpx.HTTPError as error:
        made.text = made.text or repr(error)
    made.ended = time.monotonic()
    return made


def _read(answer: httpx.Response, made: Ended) -> None:
    for line in answer.iter_lines():
        made.begun = made.begun or line.startswith("data:")
        if line == "data: [DONE]":
            made.how = DONE
        elif line.startswith("data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                made.how, made.text = ERROR_EVENT, event["error"]["message"]
            elif event["choices"] and (delta := event["choices"][0]["delta"].get("content")):
                made.text += delta

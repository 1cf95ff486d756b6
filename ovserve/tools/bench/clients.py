"""Clients that send requests: one thread each, with a persistent connection.

In a closed loop a client sends again when it has its answer, so a slow server gets fewer requests. In an open
loop requests start at their times whatever happens to earlier ones, and are timed from then. Waiting for a
free thread would hide what a slow server does to newcomers (coordinated omission).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from urllib.parse import urlsplit

from ovserve.tools.bench.plan import Job

EVENT = b"data: "
DONE = b"[DONE]"
TIMEOUT = 600.0  # seconds without data


@dataclass
class Sample:
    """The measurement of one request. Times in seconds from its start; `began` counts from the start of the
    run."""

    began: float = 0.0
    first: float = 0.0
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between two chunks of text
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Target:
    url: str  # base address
    model: str
    key: str = ""

    def connect(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return make(parts.hostname or "", parts.port, timeout=TIMEOUT)


def run(target: Target, jobs: Sequence[Job], concurrency: int) -> tuple[list[Sample], float]:
    """Return the answers in the order of the jobs, and the seconds it took.

    Jobs with times start then, any number concurrently.
    """
    timed = any(job.at is not None for job in jobs)
    own = threading.local()
    began = time.perf_counter()

    def ask(job: Job) -> Sample:
        connection = getattr(own, "connection", None) or target.connect()
        own.connection = connection
        now = time.perf_counter()
        start = now if job.at is None else min(now, began + job.at)
        try:
            answer = _ask(connection, target, job, start)
        except (OSError, HTTPException, ValueError, KeyError) as error:
            connection.close()  # the next request opens it again
            answer = Sample(total=time.perf_counter() - start, error=f"{type(error).__name__}: {error}")
        answer.began = start - began
        return answer

    with ThreadPoolExecutor(len(jobs) if timed else min(concurrency, len(jobs))) as pool:
        asked = []
        for job in jobs:
            if job.at is not None and (wait := began + job.at - time.perf_counter()) > 0:
                time.sleep(wait)
            asked.append(pool.submit(ask, job))
        answers = [one.result() for one in asked]
    return answers, time.perf_counter() - began


def _ask(connection: HTTPConnection, target: Target, job: Job, start: float) -> Sample:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": job.prompt}],
        "max_tokens": job.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    if target.key:
        headers["Authorization"] = f"Bearer {target.key}"
    path = urlsplit(target.url).path.rstrip("/")
    connection.request("POST", f"{path}/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        return Sample(error=f"{response.status}: {response.read().decode(errors='replace')}")
    answer, times, whole = Sample(), [], False
    for line in response:
        if not line.startswith(EVENT):
            continue
        if line.strip().endswith(DONE):
            whole = True
            continue
        event = json.loads(line[len(EVENT) :])
        if "error" in event:
            answer.error = str(event["error"])
        if usage := event.get("usage"):
            answer.prompt_tokens, answer.tokens = usage.get("prompt_tokens", 0), usage["completion_tokens"]
        if any(choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
            times.append(time.perf_counter())
    answer.total = time.perf_counter() - start
    answer.first = times[0] - start if times else answer.total
    answer.gaps = [after - before for before, after in pairwise(times)]
    if not whole and not answer.error:
        answer.error = "the stream ended before its end"
    return answer

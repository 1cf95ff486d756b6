"""`ovserve bench`: load on any server with OpenAI's chat/completions, measured by its clients.

Prompts, lengths and times of all requests are drawn before the first is sent, so that the same seed sends
the same requests to every server. Clients are one thread each, with a persistent connection. In a closed
loop a client sends again when it has its answer, so a slow server gets fewer requests. In an open loop
requests start at their times whatever happens to earlier ones, and are timed from then. Waiting for a free
thread would hide what a slow server does to newcomers (coordinated omission).

The numbers are of this machine, client included, so compare only what was measured in the same way.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from ovserve.errors import InvalidArgument

WORDS = (
    "the", "harbour", "was", "built", "in", "three", "parts", "and", "a", "stone", "wall", "keeps", "boats",
    "from", "north", "wind", "when", "tide", "is", "low", "people", "walk", "on", "sand", "to", "old", "inn",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One request. `at`: seconds after the start, or None: as soon as a client is free."""

    prompt: str
    max_tokens: int
    at: float | None = None


Lengths = tuple[int, int]  # the least and the most of a uniform distribution


def lengths(text: str, option: str) -> Lengths:
    """Parse `128` or `16-256`. Raises InvalidArgument."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise InvalidArgument(f"{option}: expected a number from 1 such as 128, or 16-256; got {text!r}")
    return least, most


def jobs(
    count: int,
    prompts: Sequence[str],
    answer: Lengths,
    *,
    prompt: Lengths | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> list[Job]:
    """Draw the jobs from `prompts` in turn, or generate prompts of `prompt` words, no two with the same
    beginning.

    `rate` is requests per second, at times as independent clients arrive (a Poisson process).
    """
    chance = random.Random(seed)
    scheduled, at = [], 0.0
    for i in range(count):
        text = prompts[i % len(prompts)] if prompt is None else _words(i, chance.randint(*prompt), chance)
        scheduled.append(Job(text, chance.randint(*answer), None if rate is None else at))
        at += chance.expovariate(rate) if rate is not None else 0.0
    return scheduled


def _words(number: int, count: int, chance: random.Random) -> str:
    return " ".join([str(number), *chance.choices(WORDS, k=count - 1)])


EVENT = b"data: "
DONE = b"[DONE]"
SILENCE_TIMEOUT_SECONDS = 600.0  # seconds without data


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
        return make(parts.hostname or "", parts.port, timeout=SILENCE_TIMEOUT_SECONDS)


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
        futures = []
        for job in jobs:
            if job.at is not None and (wait := began + job.at - time.perf_counter()) > 0:
                time.sleep(wait)
            futures.append(pool.submit(ask, job))
        answers = [one.result() for one in futures]
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


PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def summary(answers: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """Summarise. Times in milliseconds; percentiles are of the answers that did not fail, null if there are
    none."""
    good = [answer for answer in answers if not answer.error]
    tokens = sum(answer.tokens for answer in good)
    return {
        "seconds": round(seconds, 3),
        "answers": len(good),
        "failed": len(answers) - len(good),
        "errors": dict(Counter(answer.error for answer in answers if answer.error)),
        "answers_per_second": round(len(good) / seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "tokens": tokens,
        "first_token": percentiles([answer.first for answer in good]),
        "between_tokens": percentiles([gap for answer in good for gap in answer.gaps]),
        "whole_answer": percentiles([answer.total for answer in good]),
    }


def document(answers: Sequence[Sample], seconds: float, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the summary, the parameters of the run, and each request."""
    requests = [
        {
            "began": round(answer.began, 4),
            "first_token": _ms(answer.first),
            "whole_answer": _ms(answer.total),
            "prompt_tokens": answer.prompt_tokens,
            "tokens": answer.tokens,
            "error": answer.error or None,
        }
        for answer in answers
    ]
    return {"asked": parameters, **summary(answers, seconds), "requests": requests}


def text(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return lines of text, and the rows of the table of times."""
    lines = [
        f"{result['answers']} answers, {result['failed']} failed, in {result['seconds']:.2f} s",
        f"{result['answers_per_second']:.2f} answers/s, {result['tokens_per_second']:.1f} tokens/s",
        *(
            f"failed{f' {count} times' if count > 1 else ''}: {error}"
            for error, count in sorted(result["errors"].items())
        ),
    ]
    if not result["answers"]:
        return lines, []
    rows = []
    for name in ("first_token", "between_tokens", "whole_answer"):
        times = result[name]
        cells = ["-" if times is None else f"{times[part]:.1f}" for part in PARTS]
        rows.append([name.replace("_", " "), *cells])
    return lines, rows


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Convert seconds to milliseconds."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {name: _ms(ordered[min(len(ordered) - 1, int(len(ordered) * p))]) for name, p in PARTS.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

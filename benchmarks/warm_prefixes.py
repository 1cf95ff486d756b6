"""Measures what `--warm_prefix_tokens` does to the first requests after a graph was loaded again.

    python -m benchmarks.warm_prefixes [--model models/qwen2.5-coder-0.5b] [--rounds 3] [--tokens 4096]

Two requests have had the same system prompt of about 1,500 tokens when the graph is unloaded. A short request
wakes it. Then come one with that system prompt after a pause, and, in another round, a short one
at a time at which the prefix is being computed. Seconds to the first token.

    python -m benchmarks.warm_prefixes --record

Measures what the record of prompts costs each request, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import timeit
from functools import partial
from pathlib import Path

import httpx

from ovserve.engine.client.prefixes import PromptRecord
from tests.conftest import Server, start_process

IDLE = 8  # seconds; more than the prefix takes
RULES = " ".join(f"Rule {i}: the answer to question {i} is {i * 7 % 100}." for i in range(90))
NAME = "model"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_prefixes", allow_abbrev=False)
    parser.add_argument("--model", type=Path, default=Path("models/qwen2.5-coder-0.5b"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if arguments.record:
        _record()
        return
    print("tokens  waking  system prompt  (cached of)  short, 0.6 s after the waking one")
    for tokens in (0, arguments.tokens):
        flags = ("--idle_unload_timeout_seconds", str(IDLE), "--warm_prefix_tokens", str(tokens))
        server = start_process(
            "--model_name", NAME, "--model_path", str(arguments.model), *flags, timeout=300
        )
        try:
            rows = [_round(server) for _ in range(arguments.rounds)]
        finally:
            server.stop()
        waking, warm, meanwhile = (statistics.median(row[i] for row in rows) for i in range(3))
        cached = ", ".join(row[3] for row in rows)
        print(f"{tokens:6} {waking:6.2f}s {warm:13.2f}s  ({cached})  {meanwhile:.2f}s", flush=True)


def _round(server: Server) -> tuple[float, float, float, str]:
    for question in ("1?", "2?"):
        _ask(server, RULES, question)
    _until_unloaded(server)
    waking, _ = _ask(server, "", "hello")
    time.sleep(IDLE - 2)
    warm, cached = _ask(server, RULES, "Answer question 3.")
    _until_unloaded(server)
    second, _ = _ask(server, "", "hello")
    time.sleep(0.6)  # what is computed begins after 0.2 s
    meanwhile, _ = _ask(server, "", "good morning")
    return statistics.mean((waking, second)), warm, meanwhile, cached


def _ask(server: Server, system: str, question: str) -> tuple[float, str]:
    """Return the seconds to the first token, and how many tokens of the prompt were cached."""
    messages = [{"role": "system", "content": system or "Be short."}, {"role": "user", "content": question}]
    body = {"model": NAME, "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    began, first, usage = time.monotonic(), 0.0, {}
    with httpx.stream("POST", f"{server.v3}/chat/completions", json=body | options, timeout=300) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    first = time.monotonic() - began
                usage = chunk.get("usage") or usage
    return first, f"{usage['prompt_tokens_details']['cached_tokens']} of {usage['prompt_tokens']}"


def _until_unloaded(server: Server) -> None:
    while "ovms_graph_loaded" not in (text := httpx.get(f"{server.url}/metrics").text) or any(
        line.startswith("ovms_graph_loaded{") and line.endswith(" 1") for line in text.splitlines()
    ):
        time.sleep(0.2)


def _record() -> None:
    record = PromptRecord()
    for name, prompt in (
        ("a chat of 400 characters", "Be short. " * 40),
        ("a chat of 6,000 characters", "Be short. " * 600),
        ("a text of 1 MB", "Be short. " * 100_000),
        ("1,500 token ids", tuple(range(1500))),
    ):
        add = partial(record.add, prompt, special=False)
        seconds = min(timeit.repeat(add, number=2000, repeat=5)) / 2000
        print(f"{name}: {seconds * 1e6:.2f} us per request")


if __name__ == "__main__":
    main()

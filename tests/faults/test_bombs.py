"""Grammars that are made to hurt, against the real compiler. Rows of docs/reliability.md.

Each is sent beside a neighbour's stream, with a small model. Whatever it does to its compiler, it ends with an
answer, a 400 or a 503 of its own; the engine's process stays, and the next ordinary grammar is compiled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, Server, start_server, until
from tests.faults.watch import grammar_processes, watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIVE_SECONDS = 2.0  # of the busiest machine; docs/reliability.md has what was measured
MEMORY = 1 << 30  # bytes, of any process but the engine
Json = dict[str, Any]


def nested(depth: int) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def optional(count: int) -> Json:
    names = [f"k{i}" for i in range(count)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "additionalProperties": False,
    }


def doubling(levels: int) -> str:
    rules = [f'r{i} ::= r{i + 1} r{i + 1} | ""' for i in range(levels)]
    return "\n".join([*rules, f'r{levels} ::= "a" | ""', "root ::= r0"])


REGEXES = [
    {"guided_regex": pattern}
    for pattern in (
        "((a*)*)*b",
        "(a|aa|aaa|aaaa)+",
        '[^"]{0,1000}',
        "[a-z]{1,1000000}",
        "((((a{1,50}){1,50}){1,50}){1,50})",
        "(a|b)*a(a|b){30}",
        "[\\u0000-\\uffff]{0,500}[^\\u4e00-\\u9fff]{0,500}",
    )
]
NESTED: list[Json] = [
    {"guided_json": nested(40)},
    {"guided_json": {"type": "string", "maxLength": 1_000_000}},
    {"guided_json": optional(2000)},
    {"guided_regex": "(" * 4000 + "a" + ")" * 4000},
    {"guided_grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
]
ALTERNATIONS: list[Json] = [
    {"guided_choice": [f"value number {i}" for i in range(8000)]},
    {"guided_regex": "|".join(f"w{i}x" for i in range(20_000))},
    {"guided_grammar": "root ::= " + " | ".join(f'"w{i}" [a-z]*' for i in range(8000))},
]
EBNF = [
    {"guided_grammar": grammar}
    for grammar in (
        doubling(30),
        'root ::= root root | "a" | " " | root root root',
        'root ::= ((("a"{0,1000}){0,1000}){0,1000})',
        'root ::= a\na ::= b\nb ::= a | a "x" | ""',
    )
]


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    server = start_server(ROOT / "graphs/smollm2", timeout=230)
    yield server
    server.stop()


def ask(server: Server, **constraint: Any) -> httpx.Response:
    body = {"model": "smollm2", "prompt": "Write: ", "max_tokens": 8, **constraint}
    return httpx.post(f"{server.v3}/completions", json=body, timeout=300)


def explode(server: Server, name: str, bombs: list[Json], capsys: pytest.CaptureFixture[str]) -> None:
    engine = server.engine_pid()
    with watched(server, "smollm2") as figures:
        with ThreadPoolExecutor(len(bombs)) as pool:
            asked = [pool.submit(ask, server, **bomb) for bomb in bombs]
            time.sleep(2.0)  # for the worst of them to be at work
            ordinary = ask(server, guided_regex=f"[0-9]{{3}}-{name[:3]}")
            answers = [future.result() for future in asked]
        time.sleep(0.2)
    with capsys.disabled():
        statuses = " ".join(str(answer.status_code) for answer in answers)
        os.write(1, f"\n  {figures.line(name)}; {statuses}\n".encode())
    for bomb, answer in zip(bombs, answers, strict=True):
        assert answer.status_code in (200, 400, 503), (str(bomb)[:100], answer.text[:300])
        if answer.status_code == 503:
            assert "retry-after" in answer.headers
        elif answer.status_code == 400:
            assert answer.json()["error"]["param"] == next(iter(bomb))
    assert ordinary.status_code == 200, ordinary.text
    assert server.engine_pid() == engine, "the engine noticed nothing"
    assert figures.neighbours, "the neighbour's answers went on"
    assert figures.live < LIVE_SECONDS
    assert max(peak for pid, peak in figures.peak.items() if pid != engine) < MEMORY
    assert ask(server, guided_choice=["yes", "no"]).json()["choices"][0]["text"] in ("yes", "no")


def test_regular_expressions_that_explode(real: Server, capsys: pytest.CaptureFixture[str]) -> None:
    explode(real, "regular expressions", REGEXES, capsys)


def test_grammars_nested_without_end(real: Server, capsys: pytest.CaptureFixture[str]) -> None:
    explode(real, "nested", NESTED, capsys)


def test_huge_alternations(real: Server, capsys: pytest.CaptureFixture[str]) -> None:
    explode(real, "alternations", ALTERNATIONS, capsys)


def test_ebnf_that_explodes(real: Server, capsys: pytest.CaptureFixture[str]) -> None:
    explode(real, "EBNF", EBNF, capsys)


def test_grammar_process_sigstop(real: Server) -> None:
    """It is found by its CPU time, which stands still, and the grammar is tried again in another."""
    assert ask(real, guided_regex="[a-f]{3}").status_code == 200
    until(lambda: len(grammar_processes(real)) == 1)  # another still tries a grammar of a test before
    (stopped,) = grammar_processes(real)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    assert ask(real, guided_regex="[a-g]{3}").status_code == 200
    assert time.monotonic() - began > 5
    assert stopped not in grammar_processes(real)


def test_real_engine_sigstop() -> None:
    """Streams end with the reason, what has no word so far is answered by the next engine."""
    server = start_server(ROOT / "graphs/smollm2", "--stall_timeout", "5", timeout=230)
    try:
        body = {"model": "smollm2", "prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True}
        with (
            httpx.stream("POST", f"{server.v3}/completions", json=body, timeout=230) as stream,
            ThreadPoolExecutor(4) as pool,
        ):
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            next(lines)
            os.kill(stopped := server.engine_pid(), signal.SIGSTOP)
            others = [pool.submit(ask, server, guided_choice=["yes", "no"]) for _ in range(4)]
            assert "engine_restarting" in list(lines)[-1]
            assert [other.result().status_code for other in others] == [200] * 4
        assert server.engine_pid() != stopped
        assert ask(server).status_code == 200
    finally:
        server.stop()

"""Beam search through the server with the official client, on both text engines."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.conftest import Server, start_process, until
from tests.engine.real import EXACT

pytestmark = pytest.mark.long

FRANCE = "The capital of France is"
CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
STORY: Any = [{"role": "user", "content": "Write a story about a cat."}]


def serve(directory: Path, engine: str) -> Server:
    flags = ("--model_name", "m", "--engine", engine, "--plugin_config", EXACT)
    return start_process(str(directory), *flags, timeout=230)


@pytest.fixture(scope="module")
def servers(short_model: Path) -> Iterator[dict[str, Server]]:
    found = {engine: serve(short_model, engine) for engine in ("paged", "genai")}
    yield found
    for server in found.values():
        server.stop()


@pytest.fixture(scope="module")
def paged(servers: dict[str, Server]) -> Server:
    return servers["paged"]


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0)


ASKED: list[dict[str, Any]] = [
    {"best_of": 4, "n": 4},
    {"best_of": 4},
    {"best_of": 3, "n": 2, "length_penalty": -2.0},
    {"best_of": 4, "n": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
    {"best_of": 4, "n": 2, "num_beam_groups": 4, "diversity_penalty": 5.0, "temperature": 0.9},
    {"best_of": 2, "n": 2, "logprobs": True, "max_tokens": 6},
]


@pytest.mark.parametrize("fields", ASKED, ids=str)
def test_both_engines_give_a_client_the_same(servers: dict[str, Server], fields: dict[str, Any]) -> None:
    body = {"model": "m", "messages": CAPITAL, "max_tokens": 16, "temperature": 0} | fields
    answers = []
    for server in servers.values():
        answer = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(fields.get("n", 1)))
        for choice in answer["choices"]:
            for token in (choice["logprobs"] or {"content": []})["content"]:
                token["logprob"] = round(token["logprob"], 2)
                del token["top_logprobs"]
        usage = {
            name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        }
        answers.append((answer["choices"], usage))
    assert answers[0] == answers[1]


def test_the_best_comes_first_and_n_is_its_head(paged: Server) -> None:
    with client_of(paged) as client:
        asked: Any = {"model": "m", "prompt": FRANCE, "temperature": 0, "max_tokens": 8, "logprobs": 1}
        four = client.completions.create(**asked, best_of=4, n=4).choices
        two = client.completions.create(**asked, best_of=4, n=2).choices
        greedy = client.completions.create(**asked).choices[0]
    sums = [sum(choice.logprobs.token_logprobs) for choice in four]
    assert len({choice.text for choice in four}) == 4
    assert sums == sorted(sums, reverse=True)
    assert sums[0] >= sum(greedy.logprobs.token_logprobs) - 1e-3
    assert [choice.text for choice in two] == [choice.text for choice in four[:2]]


def test_diversity_spreads_and_a_length_penalty_orders(paged: Server) -> None:
    def texts(messages: Any, **fields: Any) -> list[str]:
        with client_of(paged) as client:
            asked: Any = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 24}
            answer = client.chat.completions.create(**asked, n=6, extra_body={"best_of": 6, **fields})
        return [choice.message.content or "" for choice in answer.choices]

    def starts(found: list[str]) -> int:
        return len({text.split()[0] for text in found if text.split()})

    assert starts(texts(STORY, num_beam_groups=6, diversity_penalty=5.0)) > starts(texts(STORY))
    # The cut model ends no text by itself.
    short, long = (sum(map(len, texts(CAPITAL, length_penalty=p, stop=[","])[:2])) for p in (-3.0, 3.0))
    assert short < long


def test_all_api_styles_that_have_it(paged: Server) -> None:
    with client_of(paged) as client:
        response = client.responses.create(
            model="m", input="What is the capital of France?", temperature=0, max_output_tokens=12,
            extra_body={"best_of": 3, "n": 2},
        )  # fmt: skip
    texts = [part.text for item in response.output for part in item.content]  # type: ignore[union-attr]
    assert len(set(texts)) == 2
    body = {
        "model": "m",
        "prompt": [FRANCE, "One, two,"],
        "best_of": 2,
        "n": 2,
        "max_tokens": 4,
        "echo": True,
    }
    choices = httpx.post(f"{paged.v3}/completions", json=body, timeout=230).json()["choices"]
    assert [choice["text"].startswith(FRANCE) for choice in choices] == [True, True, False, False]
    assert len({choice["text"] for choice in choices}) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 3}, "n"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 4, "num_beam_groups": 3}, "num_beam_groups"),
        ({"best_of": 2, "response_format": {"type": "json_object"}}, "response_format"),
        ({"best_of": 2, "frequency_penalty": 1.0}, None),
    ],
    ids=str,
)
def test_both_refuse_the_same_in_the_same_words(
    servers: dict[str, Server], fields: dict[str, Any], param: str | None
) -> None:
    body = {"model": "m", "messages": CAPITAL, "max_tokens": 4} | fields
    answers = [httpx.post(f"{server.v3}/chat/completions", json=body) for server in servers.values()]
    assert [answer.status_code for answer in answers] == [400, 400]
    errors = [answer.json()["error"] for answer in answers]
    assert errors[0]["message"] == errors[1]["message"]
    assert errors[0]["param"] == param


def gauge(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def wait_for(server: Server, name: str, *, running: int) -> None:
    until(lambda: gauge(server, name) == running, name)


def test_a_client_that_leaves_frees_its_beams_and_streams_go_on(paged: Server) -> None:
    body = {"model": "m", "messages": STORY, "max_tokens": 4000, "best_of": 8, "ignore_eos": True}
    with (
        client_of(paged) as client,
        client.chat.completions.create(
            model="m", messages=CAPITAL, max_tokens=60, stream=True, extra_body={"ignore_eos": True}
        ) as stream,
    ):
        chunks = iter(stream)
        next(chunks)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{paged.v3}/chat/completions", json=body, timeout=httpx.Timeout(60, read=3))
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    wait_for(paged, "ovserve_requests_running", running=0)
    assert httpx.post(f"{paged.v3}/chat/completions", json=body | {"max_tokens": 4}, timeout=230).is_success


def test_a_killed_engine_searches_again(servers: dict[str, Server]) -> None:
    server = servers["paged"]
    body = {"model": "m", "messages": STORY, "max_tokens": 60, "best_of": 4, "n": 2, "temperature": 0}
    alone = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230).json()["choices"]
    with ThreadPoolExecutor(2) as threads:
        post = partial(httpx.post, f"{server.v3}/chat/completions", json=body, timeout=230)
        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)  # neither is over before both are there
        both = [threads.submit(post) for _ in range(2)]
        wait_for(server, "ovserve_requests_running", running=2)
        os.kill(engine, signal.SIGKILL)
        answers = [each.result() for each in both]
    assert [answer.status_code for answer in answers] == [200, 200], (
        "nothing was sent, so they are sent again"
    )
    assert [answer.json()["choices"] for answer in answers] == [alone, alone]

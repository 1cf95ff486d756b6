"""A bound of the context, of the graph and of one request: the same error and the same end as the model's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from ovserve.engine.protocol.admission import admit, context_limit
from ovserve.errors import ContextLengthExceeded, LoadError
from ovserve.llm.request import Sampling
from tests.conftest import Server, start_process

BOUND = 64
STORY: list[Any] = [{"role": "user", "content": "Tell me a long story about a dragon."}]
LONG: list[Any] = [{"role": "user", "content": "word " * BOUND}]


@pytest.fixture(scope="module", params=["paged", "genai"])
def server(short_model: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    flags = ("--model_name", "m", "--engine", request.param, "--max_model_len", str(BOUND))
    server = start_process(str(short_model), *flags, timeout=230)
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        yield client


def test_the_graph_bounds_every_request(client: openai.OpenAI) -> None:
    [served] = client.models.list()
    assert served.to_dict()["max_model_len"] == BOUND
    answer = client.chat.completions.create(model="m", messages=STORY, temperature=0, max_tokens=1000)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == BOUND
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {BOUND} tokens") as caught:
        client.chat.completions.create(model="m", messages=LONG)
    assert caught.value.code == "context_length_exceeded"


def test_the_cache_is_sized_for_the_bound(server: Server) -> None:
    """64 tokens of two layers take 0.1 MB, and the context of the model 6, or 13 in 16 bits."""
    assert re.search(r"cache [01] MB; the engine holds", "".join(server.errors))


def test_ollamas_num_ctx_bounds_one_request(server: Server) -> None:
    options = {"num_ctx": 48, "temperature": 0}
    with ollama.Client(host=server.url) as client:
        answer = client.chat("m", STORY, options=options)
        assert answer.done_reason == "length"
        assert (answer.prompt_eval_count or 0) + (answer.eval_count or 0) == 48
        with pytest.raises(ollama.ResponseError, match="maximum context length is 8 tokens"):
            client.chat("m", STORY, options={"num_ctx": 8})
        with pytest.raises(ollama.ResponseError, match="options.num_ctx"):
            client.generate("m", "x", options={"num_ctx": -1})
    over = {"model": "m", "messages": STORY, "stream": False, "options": {"num_ctx": 4096, "num_predict": 1}}
    answered = httpx.post(f"{server.url}/api/chat", json=over, timeout=230)
    assert answered.headers["x-ovserve-ignored-params"] == "options.num_ctx"


def test_the_least_bound_counts() -> None:
    assert [context_limit(*each) for each in ((None, None), (9, None), (None, 7), (9, 7), (9, 7, 5))] == [
        None, 9, 7, 7, 5,
    ]  # fmt: skip
    with pytest.raises(LoadError, match="at most 9, the model's context, got 10") as caught:
        context_limit(9, 10)
    assert caught.value.field == "max_model_len"
    assert admit(5, 20, Sampling(max_context=8)) == 3
    assert admit(5, 20, Sampling(max_context=800)) == 15
    assert admit(5, None, Sampling(max_context=8, max_tokens=2)) == 2
    with pytest.raises(ContextLengthExceeded):
        admit(8, 20, Sampling(max_context=8))

"""Any body for embeddings, rerank, score and classify, against the real engine: an answer or a 400, and the engine goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Server, start_process
from tests.encoders import graph, tiny

TEXT = st.text(max_size=40) | st.sampled_from(
    ["the ship left the harbour", "\x00", "oil " * 90, "", "ship\udc00"]
)
IDS = st.integers(-2, 60) | st.integers() | st.sampled_from([2**31 - 1, 2**31, 2**64])
ODD: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.floats() | st.dictionaries(TEXT, TEXT, max_size=2)
)
INPUTS = (
    TEXT
    | IDS
    | ODD
    | st.lists(TEXT | IDS | ODD | st.lists(IDS, max_size=4), max_size=5)
    | st.lists(TEXT, max_size=6)
)
EMBEDDINGS = st.fixed_dictionaries(
    {"input": INPUTS},
    optional={
        "dimensions": IDS | ODD,
        "encoding_format": st.sampled_from(["float", "base64", "int8", None, 1]),
        "truncate": ODD,
        "truncate_prompt_tokens": IDS,
        "instruction": TEXT | ODD,
        "prompt_name": TEXT | ODD,
    },
)
DOCUMENT = TEXT | st.dictionaries(st.sampled_from(["text", "title", "x"]), TEXT | ODD, max_size=3)
RERANK = st.fixed_dictionaries(
    {
        "query": TEXT | ODD,
        "documents": st.lists(DOCUMENT | ODD, max_size=5) | st.lists(TEXT, min_size=1, max_size=5),
    },
    optional={
        "top_n": IDS | ODD,
        "rank_fields": st.lists(st.sampled_from(["text", "title"]), max_size=2),
        "return_documents": st.booleans(),
        "max_chunks_per_doc": IDS,
        "max_tokens_per_doc": IDS,
        "raw_scores": st.booleans(),
    },
)
TEXTS = TEXT | ODD | IDS | st.lists(TEXT | ODD, max_size=3) | st.lists(TEXT, min_size=2, max_size=2)
SCORE = st.fixed_dictionaries(
    {"text_1": TEXTS | TEXT, "text_2": TEXTS | TEXT},
    optional={
        "documents": TEXTS,
        "queries": TEXTS,
        "truncate_prompt_tokens": IDS | st.integers(-1, 20),
        "max_tokens_per_query": IDS,
        "max_tokens_per_doc": IDS | ODD,
        "use_activation": st.booleans() | ODD,
        "activation": st.booleans(),
        "instruction": TEXT,
    },
)
CLASSIFY = st.fixed_dictionaries(
    {"input": INPUTS},
    optional={
        "truncate_prompt_tokens": IDS | st.integers(-1, 20),
        "add_special_tokens": st.booleans() | ODD,
        "use_activation": st.booleans() | ODD,
        "softmax": st.booleans(),
    },
)
ANY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


MODELS = {"score": "rerank", "classify": "classification"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("any")
    for name, kind in (("mpnet", "Embeddings"), ("bert", "Rerank"), ("bert-labels", "Classification")):
        tiny(name, place / kind.lower())
        (place / kind.lower() / "graph.pbtxt").write_text(graph("./", kind=kind))
    server = start_process("--graphs_dir", str(place))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.v3, timeout=230) as made:
        yield made


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = client.post(path, content=json.dumps({"model": MODELS.get(path, path), **body}))
    assert answer.status_code in (200, 400), (body, answer.text)
    if answer.status_code == 400:
        assert answer.json()["error"]["message"], body
    return answer


@ANY
@given(body=EMBEDDINGS)
def test_any_embeddings_body(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = ask(client, "embeddings", body)
    if answer.status_code == 200:
        given_ = body["input"]
        many = isinstance(given_, list) and not isinstance(given_[0], int)
        assert len(answer.json()["data"]) == (len(given_) if many else 1)


@ANY
@given(body=RERANK)
def test_any_rerank_body(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = ask(client, "rerank", body)
    if answer.status_code == 200:
        results = answer.json()["results"]
        assert len(results) == min(len(body["documents"]), body.get("top_n") or len(body["documents"]))
        assert len({r["index"] for r in results}) == len(results)


@pytest.mark.parametrize("model", ["rerank", "embeddings"])
@ANY
@given(body=SCORE)
def test_any_score_body(client: httpx.Client, model: str, body: dict[str, Any]) -> None:
    answer = ask(client, "score", body | {"model": model})
    if answer.status_code == 200:
        second = body["text_2"]
        assert len(answer.json()["data"]) == (len(second) if isinstance(second, list) else 1)


@ANY
@given(body=CLASSIFY)
def test_any_classify_body(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = ask(client, "classify", body)
    if answer.status_code == 200:
        given_, data = body["input"], answer.json()["data"]
        many = isinstance(given_, list) and not isinstance(given_[0], int)
        assert len(data) == (len(given_) if many else 1)
        assert {(len(one["probs"]), one["num_classes"]) for one in data} == {(3, 3)}


def test_the_engine_still_answers(client: httpx.Client, server: Server) -> None:
    assert ask(client, "embeddings", {"input": "oil"}).status_code == 200
    assert ask(client, "rerank", {"query": "oil", "documents": ["oil"]}).status_code == 200
    assert ask(client, "score", {"text_1": "oil", "text_2": ["oil"]}).status_code == 200
    assert ask(client, "classify", {"input": "oil"}).status_code == 200
    assert not [line for line in server.errors if "Traceback" in line]

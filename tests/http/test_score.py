"""POST score and classify on the real server: vLLM's examples with `requests` and OpenAI's client, and bad bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import requests

from ovserve.access.keys import entry_text
from tests.conftest import Server, start_process
from tests.encoders import answers, graph, tiny

F32 = 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\''
PATHS = ("/v3/", "/v1/", "/v3/v1/", "/")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("score")
    for name, kind, options in (
        ("bert", "Rerank", ()),
        ("xlm-roberta", "Rerank", ("max_allowed_chunks: 4",)),
        ("mpnet", "Embeddings", ("truncate: true",)),
        ("bert-labels", "Classification", ()),
        ("roberta-labels", "Classification", ("truncate: true", "max_length: 9")),
    ):
        tiny(name, place / name)
        (place / name / "graph.pbtxt").write_text(graph("./", F32, *options, kind=kind))
    server = start_process("--graphs_dir", str(place), "--metrics_enable")
    yield server
    server.stop()


def post(server: Server, endpoint: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.v3}/{endpoint}", json=body, timeout=230)


def scores(response: Any) -> list[float]:
    assert response.status_code == 200, response.text
    return [one["score"] for one in response.json()["data"]]


@pytest.mark.parametrize("path", PATHS)
def test_vllm_s_example_of_scores(server: Server, path: str) -> None:
    known = answers("bert")
    expected = [1 / (1 + np.exp(-k["values"][0])) for k in known]
    queries, documents = [k["query"] for k in known], [k["document"] for k in known]

    def ask(text_1: Any, text_2: Any) -> Any:
        body = {"model": "bert", "text_1": text_1, "text_2": text_2}
        return requests.post(
            server.url + path + "score", headers={"User-Agent": "Test"}, json=body, timeout=230
        )

    assert scores(ask(queries[0], documents[0])) == pytest.approx(expected[:1], abs=1e-5)
    assert scores(ask(queries[0], documents))[0] == pytest.approx(expected[0], abs=1e-5)
    answer = ask(queries, documents)
    assert scores(answer) == pytest.approx(expected, abs=1e-5)
    body = answer.json()
    assert body.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert (body["object"], body["model"]) == ("list", "bert")
    assert [one["index"] for one in body["data"]] == [*range(len(known))]
    assert {one["object"] for one in body["data"]} == {"score"}
    tokens = sum(3 + len(f"{q} {d}".split()) for q, d in zip(queries, documents, strict=True))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    assert body["usage"] == usage | {"prompt_tokens_details": None}


@pytest.mark.parametrize("path", PATHS)
def test_vllm_s_example_of_classes(server: Server, path: str) -> None:
    known = answers("bert-labels")
    body = {"model": "bert-labels", "input": [k["text"] for k in known]}
    answer = requests.post(server.url + path + "classify", json=body, timeout=230).json()
    assert answer.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert answer["object"] == "list"
    labels = ["harbour", "engine", "Café ☕"]
    for index, (one, expected) in enumerate(zip(answer["data"], known, strict=True)):
        assert (one["index"], one["num_classes"]) == (index, 3)
        assert one["probs"] == pytest.approx(expected["scores"], abs=1e-5)
        assert one["label"] == labels[int(np.argmax(expected["scores"]))]
    tokens = requests.post(
        server.url + path + "tokenize", json={"model": "bert-labels", "prompt": known[0]["text"]}, timeout=230
    ).json()["tokens"]
    of_ids = requests.post(server.url + path + "classify", json=body | {"input": tokens}, timeout=230).json()
    assert of_ids["data"][0]["probs"] == pytest.approx(known[0]["scores"], abs=1e-5)
    assert of_ids["usage"]["total_tokens"] == len(tokens)


def test_openai_s_client_posts(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    body = {"model": "roberta-labels", "input": "left the harbour"}
    answer: Any = client.post("/classify", body=body, cast_to=object)
    expected = next(k for k in answers("roberta-labels") if k["text"] == body["input"])
    assert answer["data"][0]["probs"] == pytest.approx(expected["scores"], abs=1e-5)
    with pytest.raises(openai.NotFoundError, match="roberta-labels.*classify"):
        client.post("/score", body={**body, "text_1": "a", "text_2": "b"}, cast_to=object)
    with pytest.raises(openai.NotFoundError, match="bert.*rerank, score"):
        client.post("/classify", body={**body, "model": "bert"}, cast_to=object)
    with pytest.raises(openai.NotFoundError, match="bert-labels.*classify"):
        client.post(
            "/rerank", body={"model": "bert-labels", "query": "a", "documents": ["b"]}, cast_to=object
        )


def test_other_names_of_the_texts_and_of_the_activation(server: Server) -> None:
    (expected,) = scores(post(server, "score", model="bert", text_1="the ship", text_2="left the harbour"))
    for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        body = {first: ["the ship"], second: ["left the harbour"]}
        assert scores(post(server, "score", model="bert", **body)) == pytest.approx([expected], abs=1e-6)
    logit = answers("bert")[0]["values"][0]
    pair = {"text_1": "the ship", "text_2": "left the harbour"}
    for name in ("use_activation", "activation"):
        assert scores(post(server, "score", model="bert", **pair, **{name: False})) == pytest.approx(
            [logit], abs=2e-5
        )
        assert scores(post(server, "score", model="bert", **pair, **{name: True})) == pytest.approx(
            [expected]
        )
    known = answers("bert-labels")[0]
    for name in ("use_activation", "activation", "softmax"):
        answer = post(server, "classify", model="bert-labels", input=known["text"], **{name: False})
        assert answer.json()["data"][0]["probs"] == pytest.approx(known["logits"], abs=2e-5)


def test_embeddings_models_score_by_the_cosine(server: Server) -> None:
    texts = ["the ship", "left the harbour", "oil"]
    vectors = np.array(
        [one["embedding"] for one in post(server, "embeddings", model="mpnet", input=texts).json()["data"]]
    )
    answer = post(server, "score", model="mpnet", text_1=texts[0], text_2=texts[1:], use_activation=True)
    assert scores(answer) == pytest.approx(vectors[1:] @ vectors[0], abs=1e-5)
    assert answer.headers["x-ovserve-ignored-params"] == "use_activation"
    long = post(server, "score", model="mpnet", text_1="oil", text_2="oil " * 100)  # the graph cuts
    assert long.headers["x-ovserve-truncated"] == "1"


def test_what_has_no_effect_and_what_is_cut_is_told(server: Server) -> None:
    answer = post(server, "score", model="bert", text_1="a", text_2="b", instruction="be strict", odd=1)
    assert answer.headers["x-ovserve-ignored-params"] == "instruction,odd"
    answer = post(
        server, "score", model="bert", text_1="a", text_2=["oil", "oil " * 99], truncate_prompt_tokens=-1
    )
    assert answer.headers["x-ovserve-truncated"] == "1"
    answer = post(server, "classify", model="roberta-labels", input=["oil " * 99, "oil"], priority=1)
    assert answer.headers["x-ovserve-truncated"] == "1"
    assert answer.headers["x-ovserve-ignored-params"] == "priority"
    assert answer.json()["usage"]["total_tokens"] == 9 + 3
    answer = post(server, "classify", model="bert-labels", input=[5], add_special_tokens=False)
    assert answer.headers["x-ovserve-ignored-params"] == "add_special_tokens"


BAD = [
    ("score", {}, "text_1", "text_1: required"),
    ("score", {"text_1": "a"}, "text_2", "text_2: required"),
    ("score", {"documents": ["a"]}, "queries", "queries: required"),
    ("score", {"text_1": "a", "documents": "b"}, "queries", "queries: required"),
    ("score", {"text_1": "a", "text_2": "b", "items": "c"}, "items", "not with text_1 and text_2"),
    ("score", {"text_1": [], "text_2": ["b"]}, "text_1", "at least one"),
    ("score", {"queries": "a", "documents": []}, "documents", "at least one"),
    ("score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1", "as many as text_2 has, which is 1, got 2"),
    ("score", {"data_1": ["a", "b"], "data_2": ["c"] * 3}, "data_1", "which is 3, got 2"),
    ("score", {"text_1": "a", "text_2": ["b", 3]}, "text_2[1]", "text_2[1]"),
    ("score", {"text_1": {"content": []}, "text_2": "b"}, "text_1", "text_1"),
    ("score", {"text_1": "a", "text_2": "b", "use_activation": 1}, "use_activation", "use_activation"),
    (
        "score",
        {"text_1": "a", "text_2": "b", "use_activation": True, "activation": False},
        "activation",
        "contradicts use_activation",
    ),
    ("score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "got 0"),
    ("score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-2"),
    ("score", {"text_1": "a", "text_2": "b", "max_tokens_per_doc": -1}, "max_tokens_per_doc", "-1"),
    ("score", {"text_1": "a", "text_2": ["b", "oil " * 99]}, "text_2[1]", "at most 66"),
    (
        "score",
        {"model": "xlm-roberta", "text_1": "a", "items": None, "text_2": ["b"] * 5},
        "text_2",
        "Number of pairs exceeds max_allowed_chunks: 5 of at most 4",
    ),
    ("classify", {}, "input", "input: required"),
    ("classify", {"input": []}, "input", "should not be empty"),
    ("classify", {"input": ["a", 1]}, "input", "homogeneous"),
    ("classify", {"input": [[1], []]}, "input[1]", "should not be empty"),
    ("classify", {"input": [99]}, "input[0]", "not in the model's vocabulary"),
    ("classify", {"input": {"a": 1}}, "input", "input"),
    ("classify", {"input": "oil " * 99}, "input[0]", "this model reads at most 66"),
    ("classify", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "got 0"),
    ("classify", {"input": "a", "softmax": "no"}, "softmax", "softmax"),
    ("classify", {"input": "a", "softmax": True, "activation": False}, "softmax", "contradicts activation"),
    ("classify", {"messages": [{"role": "user", "content": "a"}]}, "input", "input: required"),
]


@pytest.mark.parametrize(("endpoint", "body", "param", "message"), BAD)
def test_bad_bodies_are_a_400_that_names_the_field(
    server: Server, endpoint: str, body: dict[str, Any], param: str, message: str
) -> None:
    model = {"score": "bert", "classify": "bert-labels"}[endpoint]
    answer = post(server, endpoint, **{"model": model, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert message in error["message"], error


def test_many_pairs_and_texts_of_two_clients_at_once(server: Server) -> None:
    """10,000 of each, in bodies that are decoded in another process; halves of characters are read as U+FFFD."""
    words = ["oil", "the ship left", "", "\u0000", "漢字 🚢 e\u0301", "prices of diesel"]
    texts = [words[i % len(words)] for i in range(10_000)]
    few = scores(post(server, "score", model="bert", text_1="the sea", text_2=words))
    labels = post(server, "classify", model="bert-labels", input=words).json()["data"]
    with ThreadPoolExecutor(4) as pool:
        scored = [
            pool.submit(post, server, "score", model="bert", text_1=first, text_2=texts)
            for first in ("the sea", ["the sea"] * len(texts))
        ]
        classified = [pool.submit(post, server, "classify", model="bert-labels", input=texts) for _ in "ab"]
    for one in scored:
        assert scores(one.result()) == pytest.approx([few[i % len(few)] for i in range(10_000)], abs=1e-5)
    for one in classified:
        data = one.result().json()["data"]
        assert [d["label"] for d in data] == [labels[i % len(labels)]["label"] for i in range(10_000)]
    over = post(server, "score", model="bert", queries="a", documents=["b"] * 10_001)
    assert "max_allowed_chunks: 10001 of at most 10000" in over.json()["error"]["message"]
    over = post(server, "score", model="mpnet", text_1="a", text_2=["b"] * 10_001)
    assert "text_2: got 10001 elements" in over.json()["error"]["message"]
    half = json.dumps({"model": "bert-labels", "input": "ship \ud83d"})
    answer = httpx.post(f"{server.v3}/classify", content=half)
    assert answer.status_code == 200, answer.text


def test_capabilities_metrics_and_openapi(server: Server) -> None:
    def facts(name: str) -> tuple[list[str], dict[str, Any]]:
        (model,) = httpx.get(f"{server.v3}/capabilities?model={name}").json()["data"]
        return [e["endpoint"] for e in model["endpoints"]], model["engines"][0]["facts"]

    endpoints, found = facts("bert-labels")
    assert endpoints == ["classify"]
    assert found["labels"] == ["harbour", "engine", "Café ☕"]
    assert facts("roberta-labels")[1]["problem_type"] == "multi_label_classification"
    assert facts("mpnet")[0] == ["embeddings", "embed", "score"]
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert {"/v3/score", "/v3/classify"} <= paths.keys()
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    before = float(values['ovserve_score_pairs_total{name="bert"}'])
    post(server, "score", model="bert", text_1="a", text_2=["b", "c"])
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['ovserve_score_pairs_total{name="bert"}']) == before + 2
    assert float(values['ovserve_classify_inputs_total{name="bert-labels"}']) > 0


def test_keys_and_their_tokens_count(tmp_path: Path) -> None:
    """Each call has its tokens off the key, and the one after the limit waits for the next minute."""
    for name, kind in (("bert", "Rerank"), ("bert-labels", "Classification")):
        tiny(name, tmp_path / "graphs" / name)
        (tmp_path / "graphs" / name / "graph.pbtxt").write_text(graph("./", F32, kind=kind))
    keys = tmp_path / "keys.toml"
    entries = (entry_text(name, f"key-of-{name}-0123") + "tokens_per_minute = 12\n" for name in "ab")
    keys.write_text("".join(entries))
    server = start_process("--graphs_dir", str(tmp_path / "graphs"), "--api_keys_file", str(keys))
    try:
        for key, endpoint, body in (
            ("key-of-a-0123", "score", {"model": "bert", "text_1": "the ship", "text_2": "oil"}),
            ("key-of-b-0123", "classify", {"model": "bert-labels", "input": "the ship"}),
        ):
            url = f"{server.v3}/{endpoint}"
            assert httpx.post(url, json=body, timeout=230).status_code == 401
            spent = 0
            while spent < 12:
                answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=230)
                assert answer.status_code == 200, answer.text
                spent += answer.json()["usage"]["total_tokens"]
            answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=230)
            assert answer.status_code == 429, answer.text
            assert "tokens" in answer.json()["error"]["message"]
    finally:
        server.stop()

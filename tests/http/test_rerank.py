"""POST rerank on the real server: Cohere's own client for both of its APIs, Jina's form, options and bad bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import numpy as np
import pytest

from tests.conftest import Server, start_process
from tests.encoders import answers, graph, tiny

QUERY, DOCUMENT = "the ship", "left the harbour"
F32 = 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("rerank")
    for name, options in (("bert", ()), ("xlm-roberta", ("max_allowed_chunks: 4",))):
        tiny(name, place / name)
        (place / name / "graph.pbtxt").write_text(graph("./", F32, *options, kind="Rerank"))
    server = start_process("--graphs_dir", str(place), "--metrics_enable")
    yield server
    server.stop()


def post(server: Server, documents: Any, model: str = "bert", **more: Any) -> httpx.Response:
    body = {"model": model, "query": QUERY, "documents": documents, **more}
    return httpx.post(
        f"{server.v3}/rerank", json={k: v for k, v in body.items() if v is not ...}, timeout=230
    )


def scores(response: httpx.Response) -> dict[int, float]:
    assert response.status_code == 200, response.text
    return {r["index"]: r["relevance_score"] for r in response.json()["results"]}


@pytest.mark.parametrize("client", [cohere.Client, cohere.ClientV2])
def test_cohere_s_clients_get_the_scores_of_transformers(server: Server, client: Any) -> None:
    with httpx.Client() as http:
        made = client(api_key="none", base_url=server.v3, httpx_client=http)
        for known in answers("bert"):
            answer = made.rerank(model="bert", query=known["query"], documents=[known["document"]])
            (result,) = answer.results
            assert result.relevance_score == pytest.approx(1 / (1 + np.exp(-known["values"][0])), abs=1e-5)
    assert answer.id
    assert answer.meta.billed_units.search_units == 1


def test_fields_without_effect_are_reported(server: Server) -> None:
    plain = post(server, ["oil", DOCUMENT])
    answer = post(server, ["oil", DOCUMENT], instruction="be strict", rank_fields=["title"], odd=1)
    assert scores(answer) == pytest.approx(scores(plain), abs=1e-6)
    assert answer.headers["x-ovserve-ignored-params"] == "instruction,odd,rank_fields"
    named = post(server, [{"title": "oil"}], rank_fields=["title"])
    assert "x-ovserve-ignored-params" not in named.headers


def test_the_best_come_first_and_documents_are_shown(server: Server) -> None:
    documents = ["oil", DOCUMENT, "she plays the cello", "oil"]
    answer = post(server, documents, return_documents=True).json()
    ranked = [r["relevance_score"] for r in answer["results"]]
    assert ranked == sorted(ranked, reverse=True)
    assert [r["document"]["text"] for r in answer["results"]] == [
        documents[r["index"]] for r in answer["results"]
    ]
    twins = [r["index"] for r in answer["results"] if r["index"] in (0, 3)]
    assert twins == [0, 3], "equal scores keep their order"
    assert answer["usage"]["total_tokens"] == sum(3 + 2 + len(d.split()) for d in documents)
    best = post(server, documents, top_n=2).json()["results"]
    assert [r["index"] for r in best] == [r["index"] for r in answer["results"]][:2]
    assert "document" not in best[0]
    assert len(post(server, documents, top_n=None).json()["results"]) == 4
    for fields in ({"top_k": 2, "truncation": True}, {"top_k": 2}):  # Voyage's client reads the answer's data
        voyage = post(server, documents, **fields).json()
        assert (voyage["object"], voyage["data"], "results" in voyage) == ("list", best, False)


def test_objects_are_ranked_by_their_fields(server: Server) -> None:
    (text,) = scores(post(server, [DOCUMENT])).values()
    objects = [{"title": "oil", "text": DOCUMENT}]
    assert scores(post(server, objects))[0] == pytest.approx(text, abs=1e-6)
    both = scores(post(server, objects, rank_fields=["title", "text"]))[0]
    assert both == pytest.approx(scores(post(server, [f"title: oil\ntext: {DOCUMENT}"]))[0], abs=1e-6)
    shown = post(server, objects, return_documents=True).json()["results"][0]["document"]
    assert shown == objects[0]


def test_raw_scores_are_logits(server: Server) -> None:
    raw, score = (scores(post(server, [DOCUMENT], raw_scores=r))[0] for r in (True, False))
    assert raw == pytest.approx(answers("bert")[0]["values"][0], abs=2e-5)
    assert score == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-6)


@pytest.mark.parametrize(
    "path", ["/v3/rerank", "/v3/v1/rerank", "/v3/v2/rerank", "/v1/rerank", "/v2/rerank", "/rerank"]
)
def test_every_address_serves_it(server: Server, path: str) -> None:
    body = {"model": "xlm-roberta", "query": QUERY, "documents": [DOCUMENT]}
    answer = httpx.post(server.url + path, json=body)
    expected = 1 / (1 + np.exp(-answers("xlm-roberta")[0]["values"][0]))
    assert scores(answer)[0] == pytest.approx(expected, abs=1e-5)


def test_long_documents_and_queries_are_told(server: Server) -> None:
    answer = post(server, ["oil " * 200], max_chunks_per_doc=1)
    assert answer.headers["x-ovserve-truncated"] == "1"
    answer = post(server, ["oil"], query="ship " * 60)
    assert answer.headers["x-ovserve-truncated"] == "query"
    whole = post(server, ["oil " * 200])
    assert "x-ovserve-truncated" not in whole.headers


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"query": ...}, "query", "query: required"),
        ({"documents": ...}, "documents", "documents: required"),
        ({"documents": []}, "documents", "at least one"),
        ({"documents": "a"}, "documents", "documents"),
        ({"documents": [1]}, "documents[0]", "documents[0]"),
        ({"documents": ["a", {"text": "b"}]}, "documents", "have to be the same type"),
        ({"documents": [{"title": "b"}]}, "documents[0].text", "document text field is missing"),
        ({"documents": [{"text": 1}]}, "documents[0].text", "expected text, got 1"),
        (
            {"documents": [{"text": "a"}], "rank_fields": ["x"]},
            "documents[0].x",
            "document x field is missing",
        ),
        ({"documents": ["a"], "top_n": 0}, "top_n", "top_n"),
        ({"documents": ["a"], "top_n": -1}, "top_n", "top_n"),
        ({"documents": ["a"], "return_documents": 1}, "return_documents", "return_documents"),
        (
            {"documents": ["a"] * 5, "model": "xlm-roberta"},
            "documents",
            "Number of documents exceeds max_allowed_chunks",
        ),
        (
            {"documents": ["oil " * 300], "model": "xlm-roberta"},
            "documents",
            "exceeding max_allowed_chunks after chunking limit: 4; actual: 6",
        ),
    ],
)
def test_bad_bodies_are_a_400_that_names_the_field(
    server: Server, body: dict[str, Any], param: str, message: str
) -> None:
    answer = post(server, **{"documents": ["a"], **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert message in error["message"], error


def test_tokenize_adds_no_special_tokens(server: Server) -> None:
    answer = httpx.post(
        f"{server.v3}/tokenize", json={"model": "bert", "text": QUERY, "add_special_tokens": True}
    )
    assert len(answer.json()["tokens"]) == 2


def test_capabilities_and_metrics(server: Server) -> None:
    (model,) = httpx.get(f"{server.v3}/capabilities?model=bert").json()["data"]
    assert [e["endpoint"] for e in model["endpoints"]] == ["rerank", "score"]
    assert model["engines"][0]["facts"]["form"] == "cross-encoder"
    post(server, ["a", "b " * 200])
    text = httpx.get(f"{server.url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("ovserve_rerank"))
    documents, chunks = (
        float(values[f'ovserve_rerank_{n}_total{{name="bert"}}']) for n in ("documents", "chunks")
    )
    assert chunks > documents > 0

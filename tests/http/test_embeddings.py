"""POST embeddings on the real server, with the official clients of OpenAI and Azure; tiny models and MiniLM."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import ollama
import openai
import pytest
from azure.ai.inference import EmbeddingsClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from ovserve.llm.token_bytes import byte_of_character
from tests.conftest import Server, start_process
from tests.encoders import answers, graph, tiny

PARTS = "中 e\u0301👩\u200d🚀"  # characters of three and four bytes, a combining one, and a joined one
PROMPTS = {"prompts": {"query": "prices rose ", "document": "oil "}, "default_prompt_name": None}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("embeddings")
    tiny("mpnet", place / "exact")
    options = ("pooling: MEAN", "normalize_embeddings: false")
    f32 = 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\''
    (place / "exact/graph.pbtxt").write_text(graph("./", *options, f32))
    tiny("roberta", place / "cutting")
    (place / "cutting/1_Pooling").mkdir()
    (place / "cutting/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (place / "cutting/config_sentence_transformers.json").write_text(json.dumps(PROMPTS))
    (place / "cutting/graph.pbtxt").write_text(
        graph("./", "truncate: true", 'isolation: "process"', tags="HTTP_")
    )
    names = ["exact", "cutting", *write_byte_models(place)]
    listed = [{"config": {"name": n, "base_path": str(place / n)}} for n in names]
    config = place / "config.json"
    config.write_text(
        json.dumps({"model_config_list": [], "mediapipe_config_list": [e["config"] for e in listed]})
    )
    server = start_process("--config_path", str(config), "--metrics_enable")
    yield server
    server.stop()


def write_byte_models(place: Path) -> list[str]:
    """Models whose tokens are bytes, in the scheme of GPT-2 and in that of SentencePiece."""
    characters = {byte: character for character, byte in byte_of_character().items()}
    schemes: dict[str, Callable[[int], str]] = {
        "bytes": characters.__getitem__,
        "fallback": "<0x{:02X}>".format,
    }
    for name, token in schemes.items():
        tokens = ["<s>", "<pad>", "</s>", "<unk>", " ", "e", *map(token, sorted({*PARTS.encode()}))]
        vocabulary = {text: id_ for id_, text in enumerate(dict.fromkeys(tokens))}
        fallback = name == "fallback"
        tokenizer: Any = Tokenizer(BPE(vocabulary, [], unk_token="<unk>", byte_fallback=fallback))
        tokenizer.decoder = ByteFallback() if fallback else ByteLevelDecoder()
        if not fallback:
            tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tiny("roberta", place / name)
        tokenizer.save(str(place / name / "tokenizer.json"))
        (place / name / "graph.pbtxt").write_text(graph("./", "pooling: MEAN"))
    return [*schemes]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def test_a_model_may_have_a_process_of_its_own(server: Server) -> None:
    assert len(server.children("ovserve.engine.worker.main")) == 2, "one is shared, one is of `cutting`"


def test_ollama_embeds_with_a_graph_of_embeddings(server: Server) -> None:
    texts = ["the ship left the harbour", "prices"]
    expected = vectors(post(server, texts))
    with ollama.Client(host=server.url) as client:
        found = client.embed("exact:latest", texts)
        assert np.allclose(np.array(found.embeddings), expected, atol=1e-6)
        assert found.prompt_eval_count == post(server, texts).json()["usage"]["prompt_tokens"]
        shorter = np.array(client.embed("exact", "prices", dimensions=4).embeddings)
        assert np.allclose(shorter[0], expected[1, :4] / np.linalg.norm(expected[1, :4]), atol=1e-5)
        assert np.allclose(np.array(client.embeddings("exact", "prices").embedding), expected[1], atol=1e-6)
        with pytest.raises(ollama.ResponseError, match="Input length"):
            client.embed("exact", "oil " * 500, truncate=False)
        cut = vectors(post(server, "oil " * 500, truncate=True))
        for more in ({}, {"truncate": True}):  # Ollama's default
            found = client.embed("exact", "oil " * 500, **more)
            assert np.allclose(np.array(found.embeddings), cut, atol=1e-6)


def test_cohere_s_clients_get_the_same_vectors(server: Server) -> None:
    texts = ["the ship left the harbour", "prices"]
    expected = vectors(post(server, texts))
    tokens = post(server, texts).json()["usage"]["prompt_tokens"]
    with httpx.Client() as http:
        second = cohere.ClientV2(api_key="none", base_url=server.url, httpx_client=http)
        found = second.embed(model="exact", input_type="search_query", texts=texts)
        assert np.allclose(np.array(found.embeddings.float_), expected, atol=1e-6)
        assert (found.texts, found.meta.billed_units.input_tokens) == (texts, tokens)
        packed = second.embed(
            model="exact", input_type="search_query", texts=texts, embedding_types=["base64"]
        )
        raw = [np.frombuffer(base64.b64decode(one), "<f4") for one in packed.embeddings.base64]
        assert np.allclose(np.array(raw), expected, atol=1e-6)
        shorter = second.embed(
            model="exact", input_type="classification", texts=["prices"], output_dimension=4
        )
        assert np.allclose(
            shorter.embeddings.float_[0], expected[1, :4] / np.linalg.norm(expected[1, :4]), atol=1e-5
        )
        first = cohere.Client(api_key="none", base_url=server.url, httpx_client=http)
        plain = first.embed(model="exact", input_type="search_document", texts=texts)
        assert np.allclose(np.array(plain.embeddings), expected, atol=1e-6)
        assert (plain.response_type, plain.texts) == ("embeddings_floats", texts)
        long = ["oil " * 500]
        cut = second.embed(model="exact", input_type="search_document", texts=long)  # END is the default
        assert np.allclose(
            np.array(cut.embeddings.float_), vectors(post(server, long, truncate=True)), atol=1e-6
        )
        for more, field in (
            ({"texts": []}, "texts"),
            ({"texts": long, "truncate": "NONE"}, "Input length"),
            ({"texts": texts, "embedding_types": ["int8"]}, "embedding_types"),
            ({"texts": texts, "embedding_types": ["float", "base64"]}, "embedding_types"),
        ):
            with pytest.raises(cohere.BadRequestError) as caught:
                second.embed(model="exact", input_type="search_query", **more)
            assert field in caught.value.body["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v2/rerank", "/embeddings"])
def test_errors_have_the_fields_of_voyage_and_cohere(server: Server, path: str) -> None:
    """voyageai 0.5.0 shows `detail` of an error's body, and Cohere's clients show `message`."""
    body = httpx.post(server.url + path, json={"model": "nothing", "input": "x", "query": "x"}).json()
    assert body["detail"] == body["message"] == body["error"]["message"]
    assert "nothing" in body["detail"]


def post(server: Server, input_: Any, model: str = "exact", **more: Any) -> httpx.Response:
    return httpx.post(f"{server.v3}/embeddings", json={"model": model, "input": input_, **more}, timeout=230)


def vectors(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.array([item["embedding"] for item in response.json()["data"]])


def test_the_openai_client_gets_the_vectors_of_transformers(client: openai.OpenAI) -> None:
    known = answers("mpnet")
    texts = [a["query"] for a in known]
    made = client.embeddings.create(model="exact", input=texts)  # the client asks for base64
    np.testing.assert_allclose([d.embedding for d in made.data], [a["values"] for a in known], atol=2e-6)
    assert [d.index for d in made.data] == [0, 1, 2, 3]
    assert made.model == "exact"
    words = sum(len(text.split()) for text in texts)
    assert made.usage.prompt_tokens == made.usage.total_tokens == words + 2 * len(texts)
    as_floats = client.embeddings.create(model="exact", input=texts[0], encoding_format="float")
    np.testing.assert_allclose(as_floats.data[0].embedding, made.data[0].embedding, atol=1e-7)


def test_texts_ids_and_formats_agree(server: Server) -> None:
    text = vectors(post(server, "the ship"))
    ids = httpx.post(f"{server.v3}/tokenize", json={"model": "exact", "text": "the ship"}).json()["tokens"]
    assert len(ids) == 4
    np.testing.assert_allclose(vectors(post(server, ids)), text, atol=1e-6)
    np.testing.assert_allclose(vectors(post(server, [ids, ids]))[1:], text, atol=1e-6)
    answer = post(server, ["the ship"], encoding_format="base64").json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    np.testing.assert_allclose([np.frombuffer(raw, "<f4")], text, atol=1e-7)
    assert answer.keys() == {"object", "data", "model", "usage"}
    null = post(server, "the ship", encoding_format=None, dimensions=None, user=None)
    np.testing.assert_allclose(vectors(null), text, atol=1e-7)
    jina = post(server, [{"text": "the ship"}, {"text": "oil"}])
    np.testing.assert_allclose(vectors(jina)[:1], text, atol=1e-6)


@pytest.mark.parametrize("prefix", ["/v3", "/v1", "/v3/v1", ""])
def test_every_prefix_serves_it(server: Server, prefix: str) -> None:
    answer = httpx.post(f"{server.url}{prefix}/embeddings", json={"model": "exact", "input": "oil"})
    assert vectors(answer).shape == (1, 16)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input: required"),
        ({"input": []}, "input", "input array should not be empty"),
        ({"input": [[]]}, "input[0]", "inner arrays in input should not be empty"),
        ({"input": ["a", 1]}, "input", "input must be homogeneous: got texts and token ids"),
        ({"input": [1, [1]]}, "input", "input must be homogeneous"),
        ({"input": {"a": 1}}, "input", "input"),
        ({"input": [1.5]}, "input[0]", "1.5"),
        ({"input": [-1]}, "input[0]", "-1"),
        ({"input": [[0, 99999]]}, "input[0]", "token id 99999 is not in the model's vocabulary"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "int8"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions"),
        ({"input": "a", "output_dtype": "int8"}, "output_dtype", "int8"),
        ({"input": ["a", {"text": "b"}]}, "input", "texts and objects"),
        ({"input": "a", "dimensions": 17}, "dimensions", "expected 1 to 16, got 17"),
        ({"input": "a", "prompt_name": "no"}, "prompt_name", "the model has none"),
        ({"input": "a", "prompt_name": "x", "instruction": "y"}, "prompt_name", "instruction"),
        ({"input": [1], "instruction": "y"}, "instruction", "not with token ids"),
        ({"input": ["a", "ship " * 70]}, "input[1]", "Input length 72 longer than allowed 64"),
        ({"input": "x" * 3_000_000}, "input[0]", "3000000 characters are more than"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "got 0"),
    ],
)
def test_bad_input_is_a_400_that_names_it(
    server: Server, body: dict[str, Any], param: str, message: str
) -> None:
    answer = httpx.post(f"{server.v3}/embeddings", json={"model": "exact", **body}, timeout=230)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert message in error["message"], error


def test_half_of_a_character_counts_as_the_replacement_character(server: Server) -> None:
    half, whole = (
        httpx.post(f"{server.v3}/embeddings", content=b'{"model":"exact","input":"ship %s"}' % text)
        for text in (b"\\ud83d", b"\\ufffd")
    )
    assert vectors(half).tolist() == vectors(whole).tolist()


def test_invalid_utf8_is_400(server: Server) -> None:
    for body in (
        b'{"model":"exact","input":"\xff"}',
        b'{"model":"exact","input":NaN}',
    ):
        answer = httpx.post(f"{server.v3}/embeddings", content=body)
        assert answer.status_code == 400, (body, answer.text)
    assert vectors(post(server, "ship")).shape == (1, 16)


def test_a_graph_that_truncates_says_how_often(server: Server) -> None:
    answer = post(server, ["ship " * 200, "oil"], model="cutting")
    assert vectors(answer).shape == (2, 16)
    assert answer.headers["x-ovserve-truncated"] == "1"
    assert answer.json()["usage"]["prompt_tokens"] == 64 + 3
    refused = post(server, ["ship " * 200], model="cutting", truncate=False)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert post(server, "the ship left", truncate_prompt_tokens=3).json()["usage"]["prompt_tokens"] == 3


def test_prompts_stand_before_the_text(server: Server) -> None:
    expected = vectors(post(server, "prices rose the ship", model="cutting"))
    types = ({"input_type": "query"}, {"input_type": "search_query"})  # Azure's, Cohere's
    for more in (*types, {"prompt_name": "query"}, {"instruction": "prices rose "}):
        np.testing.assert_allclose(
            vectors(post(server, "the ship", model="cutting", **more)), expected, atol=1e-6
        )
    plain = vectors(post(server, "the ship", model="cutting", input_type="text"))
    assert np.abs(plain - expected).max() > 1e-3


def test_an_input_type_without_effect_is_reported(server: Server) -> None:
    header = "x-ovserve-ignored-params"
    for model, given, more in (
        ("exact", "the ship", {}),
        ("cutting", [5, 6], {}),
        ("cutting", "the ship", {"instruction": "oil "}),
    ):
        answer = post(server, given, model=model, input_type="query", **more)
        assert answer.headers.get(header) == "input_type", (model, given)
    for value in ("passage", "clustering"):  # for which this model has no prompt
        assert post(server, "the ship", model="exact", input_type=value).headers[header] == "input_type"
    effective = post(server, "the ship", model="cutting", input_type="query")
    assert header not in effective.headers


def test_dimensions_are_renormalised(server: Server) -> None:
    (whole,), (cut,) = (vectors(post(server, "oil", model="cutting", **m)) for m in ({}, {"dimensions": 5}))
    np.testing.assert_allclose(np.linalg.norm(whole), 1, atol=1e-3)
    np.testing.assert_allclose(cut, whole[:5] / np.linalg.norm(whole[:5]), atol=1e-6)
    voyage = {"output_dimension": 5, "output_dtype": "float", "truncation": True, "input_type": None}
    answer = post(server, ["oil", "oil " * 100], model="cutting", **voyage)
    np.testing.assert_allclose(vectors(answer)[0], cut, atol=1e-6)
    assert "x-ovserve-ignored-params" not in answer.headers


def test_unknown_fields_are_reported_and_other_paths_are_404(server: Server) -> None:
    answer = post(server, "oil", temperature=1)
    assert answer.headers["x-ovserve-ignored-params"] == "temperature"
    chat = httpx.post(f"{server.v3}/chat/completions", json={"model": "exact", "messages": []})
    assert chat.status_code == 404
    assert (
        "'chat/completions' is not served by model 'exact'; it has embed" in chat.json()["error"]["message"]
    )


async def test_a_short_request_is_not_behind_all_of_10000_texts(server: Server) -> None:
    """The large request shares the engine. Both come while it is stopped."""
    engines = server.children("ovserve.engine.worker.main")

    def tell(number: int) -> None:
        for pid in engines:
            os.kill(pid, number)

    def ask(client: httpx.AsyncClient, texts: object) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(client.post("/embeddings", json={"model": "exact", "input": texts}))

    async with httpx.AsyncClient(base_url=server.v3, timeout=230) as client:
        for _ in range(5):  # on a busy machine both answers may be there when this process looks
            tell(signal.SIGSTOP)
            try:
                large = ask(client, ["the ship left the harbour"] * 10_000)
                await asyncio.sleep(0.5)
                short = ask(client, "oil")
                await asyncio.sleep(0.2)
            finally:
                tell(signal.SIGCONT)
            done, _ = await asyncio.wait({large, short}, return_when=asyncio.FIRST_COMPLETED)
            made = vectors(await large)
            assert made.shape == (10_000, 16)
            assert np.abs(made - made[0]).max() < 1e-5
            assert vectors(await short).shape == (1, 16)
            if done == {short}:
                break
    assert done == {short}


def test_azure_s_client(server: Server) -> None:
    headers = {"azureml-model-deployment": "exact"}
    with EmbeddingsClient(server.url, AzureKeyCredential("none"), headers=headers, retry_total=0) as client:
        made = client.embed(input=["the ship", "oil"])
        np.testing.assert_allclose(
            [d.embedding for d in made.data], vectors(post(server, ["the ship", "oil"])), atol=1e-6
        )
        assert made.usage.prompt_tokens == 7
        with pytest.raises(HttpResponseError) as caught:
            client.embed(input=["oil"], dimensions=99)
        assert caught.value.status_code in (400, 422)
    deployed = httpx.post(
        f"{server.url}/openai/deployments/exact/embeddings?api-version=1", json={"input": "oil"}
    )
    assert vectors(deployed).shape == (1, 16)
    strict = {"extra-parameters": "error", **headers}
    answer = httpx.post(
        f"{server.url}/embeddings?api-version=1", json={"input": "oil", "x": 1}, headers=strict
    )
    assert answer.status_code == 400


def test_the_length_of_vectors_is_shown_to_ollama_s_clients(server: Server) -> None:
    """They make the columns of their stores from it."""
    with ollama.Client(host=server.url) as client:
        info = client.show("exact").modelinfo or {}
        made = client.embed("exact", "oil", dimensions=0)  # as clients write that have a number everywhere
    tags = {tag["model"]: tag for tag in httpx.get(f"{server.url}/api/tags").json()["models"]}
    assert tags["exact:latest"]["details"]["embedding_length"] == 16
    assert tags["exact:latest"]["capabilities"] == ["embedding"]
    assert info[f"{info['general.architecture']}.embedding_length"] == len(made.embeddings[0]) == 16


@pytest.mark.parametrize("model", ["bytes", "fallback"])
def test_token_strs_of_parts_of_characters(server: Server, model: str) -> None:
    asked = {"model": model, "prompt": PARTS, "return_token_strs": True, "add_special_tokens": False}
    answer = httpx.post(f"{server.v3}/tokenize", json=asked).json()
    expected = [chr(byte) if byte < 128 else f"bytes:\\x{byte:02x}" for byte in PARTS.encode()]
    assert answer["token_strs"] == expected
    body = {"model": model, "tokens": answer["tokens"]}
    assert httpx.post(f"{server.v3}/detokenize", json=body).json() == {"prompt": PARTS}


def test_tokens_of_an_encoder(server: Server) -> None:
    asked = {"model": "exact", "prompt": "the ship", "return_token_strs": True}
    answer = httpx.post(f"{server.v3}/tokenize", json=asked).json()
    assert (answer["count"], answer["max_model_len"]) == (4, 64)
    assert [text.strip() for text in answer["token_strs"]] == ["<s>", "the", "ship", "</s>"]
    body = {"model": "exact", "tokens": answer["tokens"], "skip_special_tokens": True}
    assert httpx.post(f"{server.v3}/detokenize", json=body).json() == {"prompt": "the ship"}
    refused = httpx.post(
        f"{server.v3}/tokenize", json={"model": "exact", "messages": [{"role": "user", "content": "a"}]}
    )
    assert refused.status_code == 400
    info = httpx.get(f"{server.v3}/tokenizer_info?model=exact").json()
    assert (info["bos_token"], info["eos_token"], info["model_max_length"]) == ("<s>", "</s>", 64)


def test_capabilities_and_metrics(server: Server) -> None:
    (model,) = httpx.get(f"{server.v3}/capabilities?model=exact").json()["data"]
    assert [e["endpoint"] for e in model["endpoints"]] == ["embeddings", "embed", "score"]
    endpoint = model["endpoints"][0]
    assert {"input", "dimensions"} <= {p["name"] for p in endpoint["parameters"]}
    facts = model["engines"][0]["facts"]
    assert (facts["dimensions"], facts["pooling"], facts["max_model_len"]) == (16, "MEAN", 64)
    before = _metrics(server)
    post(server, ["the ship", "oil"])
    after = _metrics(server)
    for name, more in (("inputs", 2), ("tokens", 7)):
        full = f'ovserve_embedding_{name}_total{{name="exact"}}'
        assert after[full] - before[full] == more
    assert (
        after['ovserve_embedding_batch_tokens_count{name="exact"}']
        > before['ovserve_embedding_batch_tokens_count{name="exact"}']
    )


def _metrics(server: Server) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return {
        name: float(v) for name, _, v in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_a_killed_engine_costs_no_answer(server: Server) -> None:
    """A call of which nothing was read is repeated on the next engine."""
    expected = vectors(post(server, "the ship"))
    pids = server.children("ovserve.engine.worker.main")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_allclose(vectors(post(server, "the ship")), expected, atol=1e-6)

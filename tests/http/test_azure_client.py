"""The unmodified azure-ai-inference client, and Azure's rules for extras, routing and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import (
    AssistantMessage,
    ChatCompletions,
    StreamingChatCompletionsUpdate,
    SystemMessage,
    TextContentItem,
    UserMessage,
)
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from tests.conftest import Server, script_graph
from tests.http.conftest import Scripted

FRANCE = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
CHAT = "/chat/completions?api-version=2024-05-01-preview"
SCRIPT = json.dumps(
    {
        "max_length": 60,
        "step_seconds": 0.01,
        "replies": [
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "full", "refuse": "resource_exhausted"},
            {"match": "raise", "text": "a b c d e f", "raise_in_step": 3},
            {"text": "all is well"},
        ],
    }
)


@pytest.fixture
def client(server: Server) -> Iterator[ChatCompletionsClient]:
    with ChatCompletionsClient(server.url, AzureKeyCredential("none"), retry_total=0) as made:
        yield made


def complete(client: ChatCompletionsClient, **more: Any) -> Any:
    asked = {"messages": [UserMessage("What is the capital of France?")], "temperature": 0, "max_tokens": 24}
    return client.complete(**(asked | more))


def test_a_real_answer_without_a_model(client: ChatCompletionsClient) -> None:
    answer = complete(client)
    assert isinstance(answer, ChatCompletions)
    (choice,) = answer.choices
    assert "Paris" in choice.message.content
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert answer.model == "smollm2"
    assert answer.id
    assert answer.created.year >= 2024
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_stream_is_the_answer_in_pieces(client: ChatCompletionsClient) -> None:
    chunks = list(complete(client, stream=True))
    assert all(isinstance(c, StreamingChatCompletionsUpdate) for c in chunks)
    assert len(chunks) > 3
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == complete(client).choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks][-2:] == [None, "stop"]


def test_a_conversation_in_parts(client: ChatCompletionsClient) -> None:
    messages = [
        SystemMessage("Answer in one word."),
        UserMessage([TextContentItem(text="What is the capital"), TextContentItem(text="of France?")]),
        AssistantMessage("Paris"),
        UserMessage("And of Italy?"),
    ]
    assert complete(client, messages=messages).choices[0].message.content


def test_all_parameters_of_the_api(client: ChatCompletionsClient) -> None:
    answer = complete(
        client,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        top_p=1,
        seed=42,
        stop=["<|endoftext|>"],
        response_format="text",
        model="whatever",
    )
    assert answer.model == "smollm2", "with one model the name is ignored, and the answer says which it was"


def test_info(client: ChatCompletionsClient, server: Server) -> None:
    info = client.get_model_info()
    assert (info.model_name, info.model_type, info.model_provider_name) == (
        "smollm2",
        "chat_completion",
        "ovserve",
    )
    missing = httpx.get(f"{server.url}/info", headers={"azureml-model-deployment": "nobody"})
    assert (missing.status_code, missing.json()["status"]) == (404, 404)


def test_null_is_the_whole_context(server: Server) -> None:
    answer = httpx.post(server.url + CHAT, json=FRANCE | {"max_tokens": None, "stop": ["."], "seed": None})
    assert answer.status_code == 200


def test_extras(client: ChatCompletionsClient, server: Server) -> None:
    """pass-through gives top_k its effect and reports the unknown; ignore drops both; error refuses."""
    extras = {"top_k": 1, "zebra": 1}
    raw: list[Any] = []
    complete(client, model_extras=extras, raw_response_hook=lambda r: raw.append(r.http_response))
    assert raw[0].headers["x-ovserve-ignored-params"] == "zebra"
    body = FRANCE | extras | {"temperature": 2, "max_tokens": 12}
    story = [{"role": "user", "content": "Write a story about a cat."}]

    def texts(mode: str) -> set[str]:
        answers = [
            httpx.post(server.url + CHAT, json=body | {"messages": story}, headers={"extra-parameters": mode})
            for _ in range(3)
        ]
        return {a.json()["choices"][0]["message"]["content"] for a in answers}

    assert len(texts("pass-through")) == 1
    assert len(texts("ignore")) > 1
    ignored = httpx.post(server.url + CHAT, json=body, headers={"extra-parameters": "ignore"})
    assert ignored.headers["x-ovserve-ignored-params"] == "top_k,zebra"
    refused = httpx.post(server.url + CHAT, json=body, headers={"extra-parameters": "error"})
    assert refused.status_code == 400
    error = refused.json()
    assert (error["code"], error["param"], error["status"]) == ("extra_parameter", "top_k", 400)
    assert refused.headers["x-ms-error-code"] == "extra_parameter"
    fine = httpx.post(
        server.url + CHAT, json=FRANCE | {"max_tokens": 1}, headers={"extra-parameters": "error"}
    )
    assert fine.status_code == 200
    odd = httpx.post(server.url + CHAT, json=FRANCE, headers={"extra-parameters": "maybe"})
    assert odd.status_code == 400
    assert "'maybe'" in odd.json()["message"]


@pytest.mark.parametrize(
    ("change", "loc", "value", "code"),
    [
        ({"temperature": 3}, ["temperature"], "3", "unprocessable_content"),
        ({"temperature": "hot"}, ["temperature"], "hot", "unprocessable_content"),
        ({"messages": [{"role": "king", "content": "a"}]}, ["messages", "0", "role"], "king", "unprocessable_content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ["messages", "0", "content", "0", "image_url"], "null", "unprocessable_content"),
        ({"messages": []}, ["messages"], "[]", "unprocessable_content"),
        ({"messages": None}, ["messages"], "null", "unprocessable_content"),
        ({"max_tokens": 0}, ["max_tokens"], "0", "unprocessable_content"),
        ({"audio": {"voice": "a"}}, ["audio"], '{"voice":"a"}', "parameter_not_supported"),
    ],
)  # fmt: skip
def test_422_names_place_and_value(
    server: Server, change: dict[str, Any], loc: list[str], value: str, code: str
) -> None:
    answer = httpx.post(server.url + CHAT, json=FRANCE | change)
    assert answer.status_code == 422, answer.text
    error = answer.json()
    assert error["detail"] == {"loc": ["body", *loc], "value": value}
    assert (error["status"], error["code"]) == (422, code)
    assert answer.headers["x-ms-error-code"] == code
    assert isinstance(error["error"], str)
    assert loc[-1] in error["message"] or loc[0] in error["message"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"a":1,"a":2}', b"[" * 5000])
def test_no_request_at_all_is_400_or_422(server: Server, data: bytes) -> None:
    answer = httpx.post(server.url + CHAT, content=data)
    assert answer.status_code in (400, 422)
    assert answer.json()["status"] == answer.status_code


def test_too_long_is_400_with_the_numbers(client: ChatCompletionsClient) -> None:
    with pytest.raises(HttpResponseError) as caught:
        complete(client, messages=[UserMessage("word " * 9000)])
    assert caught.value.status_code == 400
    assert "last message 900" in str(caught.value)


def test_the_client_understands_errors(client: ChatCompletionsClient) -> None:
    with pytest.raises(HttpResponseError) as caught:
        complete(client, temperature=3)
    assert caught.value.status_code == 422
    assert "temperature" in caught.value.response.text()
    with pytest.raises(ResourceNotFoundError) as missing:
        complete(client, headers={"azureml-model-deployment": "nobody"})
    assert missing.value.response.headers["x-ms-error-code"] == "not_found"


def test_the_same_path_is_openai_s_without_azure_s_marks(server: Server) -> None:
    plain = httpx.post(server.url + "/chat/completions", json=FRANCE | {"max_tokens": 1})
    assert plain.status_code == 400
    assert plain.json()["error"]["param"] == "model"
    named = FRANCE | {"max_tokens": 1, "model": "smollm2"}
    assert httpx.post(server.url + "/chat/completions", json=named).status_code == 200
    bad = httpx.post(server.url + "/chat/completions", json=named | {"temperature": 3})
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    with_key = httpx.post(
        server.url + "/chat/completions", json=named | {"temperature": 3}, headers={"api-key": "k"}
    )
    assert with_key.status_code == 422
    versioned = httpx.post(f"{server.v3}/chat/completions?api-version=x", json=named | {"temperature": 3})
    assert versioned.status_code == 400


async def test_two_models(scripted: Scripted, tmp_path: Path) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        await server.manager.load("m2", script_graph(tmp_path / "second", SCRIPT))
        unnamed = await client.post(CHAT, json=FRANCE)
        assert unnamed.status_code == 422
        assert unnamed.json()["detail"] == {"loc": ["body", "model"], "value": "null"}
        named = await client.post(CHAT, json=FRANCE | {"model": "m2"})
        assert named.json()["model"] == "m2"
        header = {"azureml-model-deployment": "m"}
        routed = await client.post(CHAT, json=FRANCE | {"model": "m2"}, headers=header)
        assert routed.json()["model"] == "m"
        assert (await client.post(CHAT, json=FRANCE | {"model": "m3"})).status_code == 404
        assert (await client.get("/info", headers=header)).json()["model_name"] == "m"


async def test_the_engine_fails(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:

        def ask(word: str, **more: object) -> Any:
            return client.post(CHAT, json={"messages": [{"role": "user", "content": word}], **more})

        full = await ask("full")
        assert (full.status_code, full.headers["x-ms-error-code"]) == (503, "service_unavailable")
        died = await ask("raise", stream=True)
        last = died.text.split("\n\n")[-2]
        assert died.status_code == 200
        assert "engine" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert "[DONE]" not in died.text
        died = await ask("do raise")  # another request: a second end under the same one is a 500
        assert died.status_code == 503
        assert int(died.headers["retry-after"]) >= 1
        again = await ask("fine")
        assert again.json()["choices"][0]["message"]["content"] == "all is well"

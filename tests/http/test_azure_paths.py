"""Azure's other addresses, its current words, its image parts; and Azure OpenAI's, with the openai client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from azure.ai.inference import ChatCompletionsClient, EmbeddingsClient, ImageEmbeddingsClient
from azure.ai.inference.models import ImageEmbeddingInput, UserMessage
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import ResourceNotFoundError

from ovserve.errors import InvalidArgument
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.images import Vision
from ovserve.llm.model import ModelContext
from tests.conftest import Server
from tests.http.conftest import running

FRANCE = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
CHAT = "/chat/completions?api-version=2024-05-01-preview"
KEY = AzureKeyCredential("none")


@pytest.fixture
def client(server: Server) -> Iterator[openai.AzureOpenAI]:
    with openai.AzureOpenAI(
        azure_endpoint=server.url, api_key="none", api_version="2024-10-21", max_retries=0
    ) as made:
        yield made


def test_azure_openai_s_client(client: openai.AzureOpenAI) -> None:
    """It puts the model into the path, but for the paths that have no deployment."""
    asked: Any = {"model": "smollm2", **FRANCE, "temperature": 0, "max_tokens": 24}
    answer = client.chat.completions.create(**asked)
    assert "Paris" in answer.choices[0].message.content
    assert answer.model == "smollm2"
    chunks = client.chat.completions.create(**asked, stream=True)
    # Not compared: the second prompt is read from the prefix cache, whose rounding may decide a near tie.
    assert "Paris" in "".join(c.choices[0].delta.content or "" for c in chunks)
    assert client.completions.create(model="smollm2", prompt="One, two,", max_tokens=2).choices[0].text
    assert "smollm2" in [m.id for m in client.models.list()]
    assert client.responses.create(model="smollm2", input="Hi", max_output_tokens=2).id.startswith("resp_")


def test_azure_openai_s_errors_are_openai_s(client: openai.AzureOpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", **FRANCE)  # type: ignore[arg-type]
    assert "nobody" in missing.value.body["message"]
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="smollm2", **FRANCE, temperature=3)  # type: ignore[arg-type]
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as none:
        client.embeddings.create(model="smollm2", input="a")
    assert "not served by model" in none.value.body["message"]
    twice = httpx.post(
        f"{server.url}/openai/deployments/smollm2/chat/completions", content=b'{"model":"a","model":"b"}'
    )
    assert twice.status_code == 400


def test_the_deployment_wins_and_a_model_is_not_needed(server: Server) -> None:
    url = f"{server.url}/openai/deployments/smollm2/chat/completions?api-version=x"
    for model in ({}, {"model": "gpt-4o"}, {"model": None}):
        answer = httpx.post(url, json=FRANCE | {"max_tokens": 1} | model, headers={"api-key": "k"})
        assert (answer.status_code, answer.json()["model"]) == (200, "smollm2")


MEDIA = """
import json
from ovserve.graph import Input, Output, calculator
from ovserve.kinds.payload import HttpCalculator, HttpPayload, HttpResponse

class Decoder:
    def __init__(self, name):
        self.name = name
    def decode(self, body):
        return json.loads(body)

NAMES = ["images/generations", "images/edits", "audio/speech", "audio/transcriptions", "audio/translations"]

@calculator("SaysCalculator")
class Says(HttpCalculator):
    endpoints = {name: Decoder(name) for name in NAMES}
    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    reply = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse)

    def process(self, cc):
        payload = cc[self.http]
        files = {name: file.path.read_text() for name, file in payload.files.items()}
        text = json.dumps([payload.endpoint, json.loads(payload.body)["model"], files])
        cc.send(self.reply, HttpResponse(json.dumps({"text": text, "data": [{"b64_json": text}]}).encode()))
"""
MEDIA_GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:in"
output_stream: "HTTP_RESPONSE_PAYLOAD:out"
node { name: "S" calculator: "SaysCalculator" input_stream: "HTTP_REQUEST_PAYLOAD:in" output_stream: "HTTP_RESPONSE_PAYLOAD:out" }
"""


async def test_deployments_of_sound_and_images(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Azure's client writes these into the path too; forms keep their files and get the path's model."""
    (tmp_path / "graph.pbtxt").write_text(MEDIA_GRAPH)
    (tmp_path / "calculators.py").write_text(MEDIA)
    file = ("a.wav", b"sound")
    async with (
        running(tmp_path) as made,
        openai.AsyncAzureOpenAI(
            azure_endpoint=made.url, api_key="none", api_version="2025-04-01-preview", max_retries=0
        ) as client,
    ):
        speech = await client.audio.speech.create(model="m", input="a", voice="v")
        image = await client.images.generate(model="m", prompt="a")
        edit = await client.images.edit(model="m", prompt="a", image=file)
        found = {
            "audio/speech": json.loads(speech.content)["text"],
            "images/generations": image.data[0].b64_json,
            "images/edits": edit.data[0].b64_json,
            "audio/transcriptions": (await client.audio.transcriptions.create(model="m", file=file)).text,
        }
        files = {"images/edits": {"image": "sound"}, "audio/transcriptions": {"file": "sound"}}
        for endpoint, text in found.items():
            with subtests.test(endpoint):
                assert json.loads(text) == [endpoint, "m", files.get(endpoint, {})]
        async with httpx.AsyncClient(base_url=f"{made.url}/openai/deployments") as http:
            form = await http.post("/m/audio/translations", files={"file": file}, data={"model": "other"})
            assert json.loads(form.json()["text"]) == ["audio/translations", "m", {"file": "sound"}]
            gone = await http.post("/none/audio/transcriptions", files={"file": file})
            assert (gone.status_code, "'none'" in gone.text) == (404, True)
            plain = await http.post("/m/audio/transcriptions", json={"file": "a"})
            assert (plain.status_code, "multipart/form-data" in plain.text) == (415, True)


@pytest.mark.parametrize("base", ["/openai/v1", "/openai"])
def test_openai_s_client_at_azure_s_address(server: Server, base: str) -> None:
    with openai.OpenAI(base_url=server.url + base, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model="smollm2", max_tokens=1, **FRANCE)  # type: ignore[arg-type]
        assert answer.model == "smollm2"


def test_the_models_address(server: Server) -> None:
    """What Azure's client calls with an endpoint that ends in /models."""
    with ChatCompletionsClient(server.url + "/models", KEY, retry_total=0) as client:
        answer = client.complete(messages=[UserMessage("Hi")], max_tokens=1, model="smollm2")
        assert answer.model == "smollm2"
        assert client.get_model_info().model_name == "smollm2"
    bad = httpx.post(f"{server.url}/models/chat/completions", json=FRANCE | {"temperature": 3})
    assert (bad.status_code, bad.json()["detail"]["loc"]) == (422, ["body", "temperature"])
    assert httpx.get(f"{server.url}/models/info").json()["error"]["message"] == "model 'info' is not served"
    assert httpx.get(f"{server.url}/models/smollm2").json()["id"] == "smollm2"


@pytest.mark.parametrize("base", ["", "/v3", "/v1", "/v3/v1"])
def test_info_everywhere(server: Server, base: str) -> None:
    assert httpx.get(f"{server.url}{base}/info").json()["model_name"] == "smollm2"
    missing = httpx.get(f"{server.url}{base}/info", headers={"azureml-model-deployment": "nobody"})
    assert (missing.status_code, missing.json()["status"]) == (404, 404)
    assert missing.headers["x-ms-error-code"] == "not_found"


@pytest.mark.parametrize("base", ["", "/models"])
def test_embeddings_are_a_404_that_azure_s_client_reads(server: Server, base: str) -> None:
    url = server.url + base
    with EmbeddingsClient(url, KEY, retry_total=0) as client, pytest.raises(ResourceNotFoundError) as text:
        client.embed(input=["a"])
    with (
        ImageEmbeddingsClient(url, KEY, retry_total=0) as images,
        pytest.raises(ResourceNotFoundError) as image,
    ):
        images.embed(input=[ImageEmbeddingInput(image="data:,", text="a")])
    for caught, why in ((text, "'embeddings' is not served by model"), (image, "no embeddings of images")):
        body = json.loads(caught.value.response.text())
        assert (body["status"], body["code"]) == (404, "not_found")
        assert why in body["message"]
        assert caught.value.response.headers["x-ms-error-code"] == "not_found"


def test_a_wrong_field_of_embeddings_is_shown(server: Server) -> None:
    wrong = httpx.post(f"{server.url}/models/embeddings", json={"model": {}, "input": ["a"]})
    assert wrong.status_code == 422
    assert wrong.json()["detail"] == {"loc": ["body", "model"], "value": "{}"}


def test_embeddings_of_others_are_in_openai_s_shape(server: Server) -> None:
    for path in ("/v3/embeddings", "/v1/embeddings", "/embeddings", "/openai/v1/embeddings"):
        answer = httpx.post(server.url + path, json={"model": "smollm2", "input": "a"})
        assert answer.status_code == 404
        assert "'embeddings' is not served by model" in answer.json()["error"]["message"]


def test_drop_is_ignore(server: Server) -> None:
    body = FRANCE | {"max_tokens": 1, "top_k": 1, "zebra": 1}
    dropped = httpx.post(server.url + CHAT, json=body, headers={"extra-parameters": "Drop"})
    assert dropped.status_code == 200
    assert dropped.headers["x-ovserve-ignored-params"] == "top_k,zebra"
    odd = httpx.post(server.url + CHAT, json=body, headers={"extra-parameters": "maybe"})
    assert (
        odd.json()["message"]
        == "extra-parameters: expected one of pass-through, ignore, error, drop, got 'maybe'"
    )


DATA = base64.b64encode(b"GIF89a").decode()
SEES = ModelContext(
    template=ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"), vision=Vision()
)


def to_request(part: dict[str, Any], model: ModelContext = SEES) -> Any:
    text = {"type": "text", "text": "Look:"}
    body = {"model": "m", "messages": [{"role": "user", "content": [text, part]}]}
    endpoint = ENDPOINTS["azure/chat/completions/error"]
    return endpoint.to_request(endpoint.decode(json.dumps(body).encode()), model)


@pytest.mark.parametrize("given", [DATA, f"data:image/gif;base64,{DATA}"])
def test_an_image_part_is_an_image_url(given: str) -> None:
    request = to_request({"type": "image", "content": given})
    url = to_request({"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{DATA}"}})
    assert request.conversation.messages == url.conversation.messages
    (source,) = request.image_sources
    assert source.param == "messages[0].content[1].content"
    assert source.url.endswith(f"base64,{DATA}")


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image"}, "messages[0].content[1].content"),
        ({"type": "image", "content": ""}, "messages[0].content[1].content"),
        ({"type": "image", "content": 5}, "messages[0].content[1].content"),
    ],
)
def test_a_bad_image_part(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_request(part)
    assert caught.value.param == param


def test_a_text_model_says_so(server: Server) -> None:
    part = {"type": "image", "content": DATA}
    answer = httpx.post(server.url + CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 422
    assert "text only" in answer.json()["message"]


@pytest.mark.parametrize("base", ["/v3", "/v1", "", "/openai/v1"])
def test_compact_is_a_404_that_says_so(server: Server, base: str) -> None:
    answer = httpx.post(f"{server.url}{base}/responses/compact", json={"model": "smollm2", "input": "a"})
    assert answer.status_code == 404
    assert "not compacted here" in answer.json()["error"]["message"]
    with (
        openai.OpenAI(base_url=server.url + base, api_key="none", max_retries=0) as client,
        pytest.raises(openai.NotFoundError),
    ):
        client.responses.compact(model="smollm2", input="a")

"""`output_config` and `output_format` of Anthropic's API, with its own client and the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from ovserve.api.anthropic.messages import Messages
from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from tests.conftest import Server
from tests.rendering import rendered

TURNS = [{"role": "user", "content": "Tell me of a city."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "people": {"type": "integer", "minimum": 7, "maximum": 9},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
BODY: dict[str, Any] = {"model": "smollm2", "messages": TURNS, "max_tokens": 60, "temperature": 2, "seed": 1}


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    large: bool


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def check(text: str) -> None:
    value = json.loads(text)
    assert value["city"] in ("Paris", "Rome")
    assert 7 <= value["people"] <= 9


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}])
@pytest.mark.parametrize("temperature", [0, 2])
def test_the_format_is_enforced(server: Server, fields: dict[str, Any], temperature: float) -> None:
    answer = httpx.post(
        f"{server.v3}/messages", json=BODY | fields | {"temperature": temperature}, timeout=230
    )
    assert answer.status_code == 200, answer.text
    check(answer.json()["content"][0]["text"])
    assert "output" not in answer.headers.get("x-ovserve-ignored-params", "")


def test_the_client_s_own_argument_streamed_and_whole(client: anthropic.Anthropic) -> None:
    asked: Any = {
        "model": "smollm2",
        "messages": TURNS,
        "max_tokens": 60,
        "output_config": {"format": FORMAT},
    }
    check(client.messages.create(**asked).content[0].text)
    with client.messages.stream(**asked) as stream:
        check(stream.get_final_text())


def test_the_client_parses_a_model_of_pydantic(client: anthropic.Anthropic) -> None:
    for _ in range(3):
        answer = client.messages.parse(
            model="smollm2", messages=TURNS, max_tokens=400, output_format=City, extra_body={"temperature": 0}
        )
        assert isinstance(answer.parsed_output, City)


def decoded(**fields: Any) -> Any:
    return Messages().decode(json.dumps(BODY | fields).encode())


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type", 'json_schema, got "xml"'),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "required"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, "output_config.format.schema", "got 5"),
        ({"output_format": {"schema": {}}}, "output_format.type", "required"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", 'xhigh, got "huge"'),
        ({"output_config": "x"}, "output_config", '"x"'),
    ],
)  # fmt: skip
def test_refusals_when_decoding(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decoded(**fields)
    assert caught.value.param == param
    assert says in str(caught.value)


def test_one_format_at_most() -> None:
    with pytest.raises(InvalidArgument, match="output_format: .* there is output_config.format already"):
        decoded(output_config={"format": FORMAT}, output_format=FORMAT)


def test_what_is_not_enforced_is_reported() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    ignored = decoded(output_config={"format": {"type": "json_schema", "schema": schema}}).ignored
    assert any(name.startswith("output_config.format:") and "uniqueItems" in name for name in ignored)


@pytest.mark.parametrize("reads", [True, False])
def test_effort_goes_to_templates_that_read_it(reads: bool) -> None:
    text = "{{ messages[0].content }}" + ("{{ reasoning_effort }}" if reads else "")
    model = ModelContext(template=ChatTemplate(text))
    request = Messages().to_request(decoded(output_config={"effort": "low"}), model)
    assert ("output_config.effort" in request.presentation.ignored_params) is not reads
    if reads:
        assert rendered(request, model).prompts == ("Tell me of a city.low",)


def test_counting_takes_it_too(server: Server) -> None:
    asked = {"model": "smollm2", "messages": TURNS}
    plain = httpx.post(f"{server.v3}/messages/count_tokens", json=asked).json()
    formed = httpx.post(
        f"{server.v3}/messages/count_tokens", json=asked | {"output_config": {"format": FORMAT}}
    )
    assert formed.json() == plain
    assert (
        httpx.post(f"{server.v3}/messages/count_tokens", json=asked | {"output_format": {}}).status_code
        == 400
    )

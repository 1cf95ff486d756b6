"""A language model that is fluent, in Qwen2-VL's layout (`make fluent-vision-model`): what its images do to a
conversation through the real server. It cannot see; slow, 0.7 GB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from scripts.qwen2vl_model import image_tokens
from tests.conftest import ROOT, Server, start_server
from tests.http.test_images import image, text, user
from tests.http.test_vision import graph
from tests.sandbox.images.conftest import picture

DIRECTORY = Path(os.environ.get("OVSERVE_TEST_QWEN2VL", ROOT / "models/qwen2vl"))
SIZE = (320, 240)
FRANCE = "What is the capital of France?"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DIRECTORY.is_dir(), reason="`make fluent-vision-model` makes it"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(graph(tmp_path_factory.mktemp("qwen2vl") / "graph", DIRECTORY), name="m")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=server.v3, api_key="none", timeout=300)


def ask(client: OpenAI, *messages: dict[str, Any], **more: Any) -> Any:
    return client.chat.completions.create(
        model="m", messages=list(messages), temperature=0, max_tokens=24, **more
    )


def said(answer: Any) -> str:
    return answer.choices[0].message.content or ""


def test_it_is_fluent_with_an_image_whose_tokens_are_counted(client: OpenAI) -> None:
    seen = image(picture(size=SIZE))
    plain = ask(client, user(text(FRANCE)))
    seeing = ask(client, user(seen, text(FRANCE)))
    assert "Paris" in said(plain)
    assert "Paris" in said(seeing)
    assert seeing.usage.prompt_tokens == plain.usage.prompt_tokens + image_tokens(*SIZE)


def test_a_conversation_goes_on_about_the_same_image(client: OpenAI) -> None:
    """Streamed is what is not streamed, and the image counts in each turn."""
    turns = [user(image(picture(size=SIZE)), text(FRANCE))]
    first = ask(client, *turns)
    turns += [{"role": "assistant", "content": said(first)}, user(text("And the capital of Spain?"))]
    whole = ask(client, *turns)
    chunks = list(ask(client, *turns, stream=True, stream_options={"include_usage": True}))
    assert "Madrid" in said(whole)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said(whole)
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert whole.usage.prompt_tokens > first.usage.prompt_tokens > image_tokens(*SIZE)


def test_two_images_and_a_schema(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    seen = [image(picture(size=SIZE)), image(picture(size=(64, 48), color=(1, 2, 3)))]
    answer = ask(
        client,
        user(*seen, text(f"{FRANCE} Answer in JSON.")),
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )
    assert said(answer).replace(" ", "") == '{"city":"Paris"}'
    assert answer.usage.prompt_tokens > image_tokens(*SIZE) + image_tokens(64, 48)

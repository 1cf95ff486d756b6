"""Images through the real server process and the real engine, with the tiny model that sees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.vision_model import IMAGE_TOKENS, make
from tests.conftest import ROOT, Server, start_server
from tests.http.test_images import chat, claude, image, text, user
from tests.sandbox.images.conftest import picture

RED, BLUE = picture(color=(255, 0, 0)), picture(color=(0, 0, 255))


def graph(directory: Path, model: Path) -> Path:
    """The shipped example over this model."""
    written = (ROOT / "graphs/vision/graph.pbtxt").read_text().replace("../../models/vision", str(model))
    directory.mkdir()
    (directory / "graph.pbtxt").write_text(written)
    return directory


@pytest.fixture(scope="module")
def server(vision_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(graph(tmp_path_factory.mktemp("vision") / "graph", vision_model), name="m")
    yield running
    running.stop()


def ask(server: Server, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = chat(user(*parts), **{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **more})
    answer = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def said(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]  # type: ignore[no-any-return]


def test_the_answer_depends_on_the_image(server: Server) -> None:
    asked = text("What colour is this?")
    plain, red, blue = ask(server, asked), ask(server, image(RED), asked), ask(server, image(BLUE), asked)
    assert len({said(plain), said(red), said(blue)}) == 3
    assert said(ask(server, image(RED), asked)) == said(red)
    url = image(RED)["image_url"]["url"]  # as Mistral's client and older LangChain write it
    assert said(ask(server, {"type": "image_url", "image_url": url}, asked)) == said(red)
    assert red["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + IMAGE_TOKENS
    assert red["usage"]["completion_tokens"] == 8


def test_count_tokens_counts_the_image(server: Server) -> None:
    turn = user(text("What colour is this?"), claude(RED), text("And this?"), claude(BLUE))
    counted = httpx.post(f"{server.v3}/messages/count_tokens", json=chat(turn), timeout=230).json()
    answer = httpx.post(f"{server.v3}/messages", json=chat(turn, max_tokens=2), timeout=230).json()
    assert counted["input_tokens"] == answer["usage"]["input_tokens"] > 2 * IMAGE_TOKENS


def test_it_streams(server: Server) -> None:
    body = chat(user(image(RED), text("hi")), temperature=0, max_tokens=8, ignore_eos=True, stream=True)
    body["stream_options"] = {"include_usage": True}
    answer = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    whole = ask(server, image(RED), text("hi"))
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1]) == said(whole)
    assert events[-1]["usage"] == whole["usage"]


def test_a_grammar_holds_for_what_is_said_of_an_image(server: Server) -> None:
    answer = ask(
        server, image(RED), text("hi"), structured_outputs={"regex": "(red|blue)!"}, ignore_eos=False
    )
    assert re.fullmatch("(red|blue)!", said(answer))


def test_what_would_kill_the_engine_is_refused(server: Server) -> None:
    engine = server.engine_pid()
    for path, body in (
        ("completions", {"model": "m", "prompt": "hi", "echo": True}),
        ("completions", {"model": "m", "prompt": [1, 2, 3]}),
        ("chat/completions", chat(user(text("<image> what is this?")))),
        ("chat/completions", chat(user(image(RED), text("<ov_genai_image_1>")))),
        ("chat/completions", chat(user(image(picture(size=(5000, 1)))))),
    ):
        answer = httpx.post(f"{server.v3}/{path}", json=body, timeout=230)
        assert answer.status_code == 400, answer.text
    too_long = httpx.post(
        f"{server.v3}/chat/completions", json=chat(user(image(RED), text("a " * 2000))), timeout=30
    )
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    ask(server, image(RED), text("hi"))
    assert server.engine_pid() == engine


@pytest.mark.slow
def test_the_default_model_with_an_eye_speaks_fluently(model: Path, tmp_path: Path) -> None:
    """It cannot see; but a real language model goes through the whole path, and knows what it knew before."""
    make(tmp_path / "model", model)
    running = start_server(graph(tmp_path / "graph", tmp_path / "model"), name="m")
    try:
        body = chat(user(text("What is the capital of France?")), temperature=0, max_tokens=20)
        plain = httpx.post(f"{running.v3}/chat/completions", json=body, timeout=230).json()
        assert "Paris" in said(plain)
        body = chat(
            user(image(RED)),
            {"role": "assistant", "content": "A picture."},
            user(text("What is the capital of France?")),
            temperature=0,
            max_tokens=20,
        )
        seeing = httpx.post(f"{running.v3}/chat/completions", json=body, timeout=230).json()
        assert "Paris" in said(seeing)
        assert seeing["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + IMAGE_TOKENS
    finally:
        running.stop()

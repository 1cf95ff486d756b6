"""tokenize, detokenize, tokenizer_info: both forms, every path, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.conftest import Server, eventually, script_graph
from tests.http.conftest import Scripted

SCRIPT = json.dumps({"max_length": 20, "replies": [{"text": "fine"}]})
MESSAGES = [{"role": "user", "content": "one two"}]
PREFIXES = ["", "/v1", "/v3", "/v3/v1", "/v3/completions", "/v3/chat/completions", "/completions"]


@pytest.fixture
def post(server: Server):
    with httpx.Client(base_url=server.url, timeout=230) as client:
        yield lambda path, body: client.post(path, json=body)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_path_without_a_model(server: Server, prefix: str) -> None:
    with httpx.Client(base_url=server.url) as client:
        there = client.post(f"{prefix}/tokenize", json={"prompt": "Hello world", "add_special_tokens": False})
        assert there.status_code == 200, there.text
        ids = there.json()["tokens"]
        back = client.post(f"{prefix}/detokenize", json={"tokens": ids})
        assert back.json() == {"prompt": "Hello world"}
        info = client.get(f"{prefix}/tokenizer_info").json()
        assert info["eos_token"] == "<|im_end|>"
        assert "message" in info["chat_template"]


def test_vllm_s_form(post) -> None:
    answer = post("/v3/tokenize", {"model": "smollm2", "prompt": "Hello world"}).json()
    assert answer["count"] == len(answer["tokens"]) == 2
    assert answer["max_model_len"] == 8192
    assert answer["token_strs"] is None
    strings = post("/v3/tokenize", {"prompt": "Hello world", "return_token_strs": True}).json()["token_strs"]
    assert strings == ["Hello", " world"]


def test_messages_are_counted_as_the_chat_counts_them(post) -> None:
    counted = post("/v3/tokenize", {"messages": MESSAGES}).json()["count"]
    chat = post("/v3/chat/completions", {"model": "smollm2", "messages": MESSAGES, "max_tokens": 1}).json()
    assert counted == chat["usage"]["prompt_tokens"]
    bare = post("/v3/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}).json()["count"]
    assert bare < counted


def test_ovms_s_form(post) -> None:
    def ids(**body: object) -> object:
        return post("/v3/tokenize", {"model": "smollm2", **body}).json()["tokens"]

    one = ids(text="Hello big world")
    assert isinstance(one, list)
    assert len(one) == 3
    assert ids(text=["Hello big world"]) == one
    assert ids(text=["Hello big world", ""]) == [one, []]
    assert ids(text="") == []
    assert ids(text="Hello big world", max_length=2) == one[:2]
    assert ids(text="Hello big world", max_length=3) == one
    assert ids(text="Hello big world", max_length=5) == one
    pad = ids(text="Hello big world", max_length=5, pad_to_max_length=True)
    assert pad == [*one, 2, 2]
    left = ids(text="Hello big world", max_length=5, pad_to_max_length=True, padding_side="left")
    assert left == [2, 2, *one]
    assert ids(text="Hello big world", max_length=None, padding_side=None, pad_to_max_length=False) == one


def test_there_and_back(post) -> None:
    texts = ["🙂 naïve", "<|im_start|>user\nhi<|im_end|>"]
    rows = post("/v3/tokenize", {"text": texts}).json()["tokens"]
    assert post("/v3/detokenize", {"tokens": rows}).json() == {"prompt": texts}
    assert post("/v3/detokenize", {"tokens": rows[1], "skip_special_tokens": True}).json() == {
        "prompt": "user\nhi"
    }
    assert post("/v3/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "expected one of text, prompt, messages, got none"),
        ({"text": "a", "prompt": "b"}, "prompt", "got text and prompt"),
        ({"text": []}, "text", "length >= 1"),
        ({"text": ["a", 1]}, "text[1]", "got 1"),
        ({"text": 5}, "text", "got 5"),
        ({"text": "a", "max_length": 0}, "max_length", ">= 1"),
        ({"text": "a", "max_length": "2"}, "max_length", 'got "2"'),
        ({"text": "a", "pad_to_max_length": True}, "pad_to_max_length", "needs max_length"),
        ({"text": "a", "padding_side": "up"}, "padding_side", "up"),
        ({"text": "a", "add_special_tokens": 1}, "add_special_tokens", "got 1"),
        ({"prompt": "a", "max_length": 2}, "max_length", "only allowed with text"),
        ({"prompt": "a", "tools": []}, "tools", "only allowed with messages"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role", "'king'"),
        ({"prompt": "a", "model": 5}, "model", "got 5"),
    ],
)
def test_tokenize_refuses(post, body: dict[str, object], param: str, says: str) -> None:
    answer = post("/v3/tokenize", body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "tokens: required, but missing"),
        ({"tokens": [1, [2]]}, "a mixture"),
        ({"tokens": [49152]}, "token id 49152 is not in the vocabulary of 49152"),
        ({"tokens": [-1]}, "tokens[0]"),
        ({"tokens": [2**70]}, "tokens"),
        ({"tokens": ["a"]}, "tokens[0]"),
        ({"tokens": [1.5]}, "tokens[0]"),
    ],
)
def test_detokenize_refuses(post, body: dict[str, object], says: str) -> None:
    answer = post("/v3/detokenize", body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_unknown_fields_are_told_and_unknown_models_are_404(server: Server, post) -> None:
    answer = post("/v3/tokenize", {"prompt": "a", "zebra": 1})
    assert answer.headers["x-ovserve-ignored-params"] == "zebra"
    chat = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"stripes": 1}}
    answer = post("/v3/tokenize", chat | {"zebra": 1})
    assert answer.headers["x-ovserve-ignored-params"] == "chat_template_kwargs.stripes,zebra"
    assert post("/v3/tokenize", {"prompt": "a", "model": "nobody"}).status_code == 404
    assert httpx.get(f"{server.v3}/tokenizer_info?model=nobody").status_code == 404


async def test_the_model_must_be_named_when_there_are_two(scripted: Scripted, tmp_path: Path) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        await server.manager.load("m2", script_graph(tmp_path / "second", SCRIPT))
        answer = await client.post("/v3/tokenize", json={"prompt": "a b"})
        assert answer.status_code == 400
        assert "m, m2" in answer.json()["error"]["message"]
        named = await client.post("/v3/tokenize", json={"prompt": "a b", "model": "m2"})
        assert named.json()["count"] == 2


async def test_the_engine_dies_under_it(scripted: Scripted) -> None:
    async with scripted("{}") as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        os.kill(server.engine.pid, signal.SIGSTOP)
        asked = asyncio.create_task(client.post("/tokenize", json={"prompt": "a"}))
        await eventually(lambda: len(server.engine._pending) == 1)
        os.kill(server.engine.pid, signal.SIGKILL)
        answer = await asked
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_restarting"

"""Images in requests of every dialect, over a scripted engine that tells which image it sees where."""

from __future__ import annotations

import base64
import itertools
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.api.openai.logprobs import pictures_to_count
from ovserve.errors import InvalidArgument
from ovserve.llm.images import Vision
from ovserve.llm.model import ModelContext
from ovserve.sandbox.images.loader import Bounds, Media
from ovserve.sandbox.images.policy import parse_policy
from tests.conftest import script_graph, start_server
from tests.http.conftest import Scripted, running
from tests.sandbox.images.conftest import picture

VISION = json.dumps({"vision": True, "replies": [{"echo": True}]})
RED, BLUE = picture(color=(255, 0, 0)), picture(size=(80, 40), color=(0, 0, 255))
SEEN_RED, SEEN_BLUE = "[64x48 #ff0000]", "[80x40 #0000ff]"


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def image(data: bytes | str, **more: str) -> dict[str, Any]:
    url = data if isinstance(data, str) else data_url(data)
    return {"type": "image_url", "image_url": {"url": url, **more}}


def claude(data: bytes) -> dict[str, Any]:
    """As Anthropic writes it."""
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


async def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=230) as client:
        return await client.post(f"{url}/v3/{path}", json=body)


async def refused(url: str, path: str, body: dict[str, Any]) -> tuple[str, str]:
    answer = await post(url, path, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["message"], error.get("param") or ""


async def test_chat(scripted: Scripted) -> None:
    async with scripted(VISION) as app:
        body = chat(
            user(text("one"), image(RED), text("two"), text("three"), image(BLUE)), user(text("four"))
        )
        answer = (await post(app.url, "chat/completions", body)).json()
        said = answer["choices"][0]["message"]["content"]
        assert said == f"user: one{SEEN_RED}two\nthree{SEEN_BLUE}\nuser: four\nassistant:"
        words = len(said.replace(SEEN_RED, " ").replace(SEEN_BLUE, " ").split())
        assert answer["usage"]["prompt_tokens"] == words + 2 * 16
        streamed = await post(app.url, "chat/completions", body | {"stream": True})
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == said
        several = (await post(app.url, "chat/completions", body | {"n": 2, "seed": 1})).json()
        assert [c["message"]["content"] for c in several["choices"]] == [said, said]
        plain = (await post(app.url, "chat/completions", chat(user(text("hi"))))).json()
        assert plain["choices"][0]["message"]["content"] == "user: hi\nassistant:"


async def test_detail_bounds_what_the_model_sees(scripted: Scripted) -> None:
    large = picture(size=(2400, 1200), color=(0, 0, 255), compress_level=1)
    async with scripted(VISION) as app:
        for more, seen in (
            ({"detail": "low"}, "512x256"),
            ({"detail": "high"}, "1536x768"),
            ({"detail": "original"}, "1536x768"),
            ({}, "1536x768"),
        ):
            answer = (await post(app.url, "chat/completions", chat(user(image(large, **more))))).json()
            assert f"[{seen} #0000ff]" in answer["choices"][0]["message"]["content"]


async def test_responses(scripted: Scripted) -> None:
    parts = [
        {"type": "input_text", "text": "look:"},
        {"type": "input_image", "image_url": data_url(RED), "detail": "low"},
        {"type": "input_image", "image_url": {"url": data_url(BLUE)}},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    shown = {"type": "function_call_output", "call_id": "c", "output": [parts[1]]}
    body = {"model": "m", "input": [{"role": "user", "content": parts}, call, shown]}
    async with scripted(VISION) as app:
        answer = (await post(app.url, "responses", body)).json()
        said = answer["output"][0]["content"][0]["text"]
        assert f"user: look:{SEEN_RED}{SEEN_BLUE}\n" in said
        assert f"tool: {SEEN_RED}\n" in said
        assert answer["usage"]["input_tokens"] > 3 * 16


async def test_messages(scripted: Scripted) -> None:
    block = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()},
    }
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("here"), block]}
    turns = [user(block, text("what?")), {"role": "assistant", "content": [use]}, user(result)]
    async with scripted(VISION) as app:
        answer = (await post(app.url, "messages", chat(*turns, max_tokens=50))).json()
        said = answer["content"][0]["text"]
        assert f"user: {SEEN_RED}what?\n" in said
        assert f"tool: here{SEEN_RED}\n" in said
        url = {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png"}}
        message, _ = await refused(app.url, "messages", chat(user(url), max_tokens=5))
        assert message.startswith("messages[0].content[0].source.url: URLs are not allowed")


OF_A_TEXT_MODEL: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", chat(user(text("a"), image(RED))), "messages[0].content[1].type"),
    ("responses", {"model": "m", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]}]}, "input[0].content[0].type"),
    ("messages", chat(user({"type": "image", "source": {"type": "url", "url": "x"}}), max_tokens=5), "messages[0].content[0].type"),
]  # fmt: skip


async def test_a_text_model_refuses_images(scripted: Scripted, subtests: pytest.Subtests) -> None:
    async with scripted("{}") as app:
        for path, body, param in OF_A_TEXT_MODEL:
            with subtests.test(path):
                message, named = await refused(app.url, path, body)
                assert message.startswith(f"{param}: this model takes text only, got ")
                assert path == "messages" or named == param


BAD_PARTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "image_url"}, "messages[0].content[0].image_url: required, but missing"),
    (image(""), "messages[0].content[0].image_url.url: expected a URL, got an empty string"),
    ({"type": "image_url", "image_url": "x"}, "messages[0].content[0].image_url: files are not allowed"),
    (image(RED, detail="huge"), "messages[0].content[0].image_url.detail"),
    (image("data:image/png;base64,AAAA"), "messages[0].content[0].image_url.url: the image cannot be read: it is not an image"),
    (image("https://example.org/cat.png"), "messages[0].content[0].image_url.url: URLs are not allowed"),
    (image("/etc/passwd"), "messages[0].content[0].image_url.url: files are not allowed"),
    ({"type": "input_video", "input_video": {}}, "messages[0].content[0].type: expected one of text"),
    ({"type": "video_url"}, "messages[0].content[0].type: expected one of text"),
]  # fmt: skip


async def test_bad_image_parts(scripted: Scripted, subtests: pytest.Subtests) -> None:
    async with scripted(VISION) as app:
        for part, says in BAD_PARTS:
            with subtests.test(says):
                message, param = await refused(app.url, "chat/completions", chat(user(part)))
                assert message.startswith(says)
                assert says.startswith(param)


MARKED = [
    chat(user(text("see <ov_genai_image_0>"))),
    chat(user(image(RED), text("see <ov_genai_image_0>"))),
    chat(user(image(RED), text("see <ov_genai_image_1>"))),
    chat(user(image(RED), text("see <ov_genai_image_"))),
    chat(user(text("see <ov_genai_video_0>"))),
    chat(user(text("see <image>"))),
    chat(user(image(RED), text("see <image>"))),
    chat({"role": "assistant", "content": "<image>"}, user(text("a"))),
    chat(user(text("a")), chat_template_kwargs={"extra": "<image>"}),
]


async def test_texts_cannot_stand_for_images(tmp_path: Path, subtests: pytest.Subtests) -> None:
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{{ extra | default('') }}"
    )
    script = json.dumps({"vision": True, "chat_template": template})
    async with running(script_graph(tmp_path / "g", script)) as app:
        for i, body in enumerate(MARKED):
            with subtests.test(i=i):
                message, param = await refused(app.url, "chat/completions", body)
                assert param == "messages"
                assert "is how this model marks an image" in message


async def test_a_template_that_loses_an_image(tmp_path: Path) -> None:
    template = "{{ messages[-1]['content'] }}"
    script = json.dumps({"vision": True, "chat_template": template})
    async with running(script_graph(tmp_path / "g", script)) as app:
        message, _ = await refused(app.url, "chat/completions", chat(user(image(RED)), user(text("a"))))
        assert "the chat template shows 0 of 1 images" in message


async def test_what_a_vision_model_does_not_answer(scripted: Scripted) -> None:
    async with scripted(VISION) as app:
        for prompt in ("hi", [1, 2]):
            message, param = await refused(app.url, "completions", {"model": "m", "prompt": prompt})
            assert "vision model" in message
            assert param == "prompt"
        message, _ = await refused(app.url, "tokenize", chat(user(image(RED))))
        assert "an image has no token ids" in message
        message, _ = await refused(app.url, "messages/count_tokens", chat(user(claude(b"GIF89a"))))
        assert message.startswith("messages[0].content[0].source.data: the image cannot be read")
        async with httpx.AsyncClient() as client:
            told = (await client.get(f"{app.url}/v3/capabilities")).json()["data"][0]["endpoints"]
        assert {e["endpoint"]: e["available"] for e in told}["completions"] is False


async def test_images_are_counted_as_the_answer_counts_them(scripted: Scripted) -> None:
    async with scripted(VISION) as app:
        for turn in (
            user(text("one"), claude(RED), text("two three"), claude(BLUE)),
            user({"type": "text", "text": "hi"}),
        ):
            counted = await post(app.url, "messages/count_tokens", chat(turn))
            answered = await post(app.url, "messages", chat(turn, max_tokens=5))
            assert counted.json() == {"input_tokens": answered.json()["usage"]["input_tokens"]}


def test_what_only_the_engine_can_count_is_not_counted() -> None:
    images = pictures_to_count(ModelContext(vision=Vision()))
    with pytest.raises(InvalidArgument, match="only the engine can count the image tokens of this model"):
        images.place("x", None, "messages[0].content[0]", "messages[0].content[0].url", "image")
    with pytest.raises(InvalidArgument, match="this model takes text only"):
        pictures_to_count(ModelContext()).place("x", None, "a", "a.url", "image")


async def test_a_model_on_an_npu_takes_exactly_one_image(tmp_path: Path) -> None:
    directory = script_graph(tmp_path / "g", VISION)
    path = directory / "graph.pbtxt"
    path.write_text(path.read_text().replace('models_path: "', 'device: "NPU" models_path: "'))
    async with running(directory) as app:
        answer = await post(app.url, "chat/completions", chat(user(image(RED), text("hi"))))
        assert SEEN_RED in answer.json()["choices"][0]["message"]["content"]
        for parts, number in (([text("hi")], 0), ([image(RED), image(BLUE)], 2)):
            message, param = await refused(app.url, "chat/completions", chat(user(*parts)))
            assert message.endswith(f"on an NPU, where a request has exactly one image, not {number}")
            assert param == "messages"


async def test_files_and_bounds_of_a_server(tmp_path: Path) -> None:
    allowed = tmp_path / "pictures"
    allowed.mkdir()
    (allowed / "red.png").write_bytes(RED)
    (allowed / "out.png").symlink_to("/etc/hostname")
    media = Media(parse_policy("", str(allowed)), bounds=Bounds(images=2))
    async with running(script_graph(tmp_path / "g", VISION), media=media) as app:
        for url in (f"{allowed}/red.png", f"file://{allowed}/red.png"):
            answer = (await post(app.url, "chat/completions", chat(user(image(url))))).json()
            assert SEEN_RED in answer["choices"][0]["message"]["content"]
        message, _ = await refused(app.url, "chat/completions", chat(user(image(f"{allowed}/out.png"))))
        assert "outside of the allowed directory" in message
        message, param = await refused(app.url, "chat/completions", chat(user(*[image(RED)] * 3)))
        assert "3 images are too many; a request may have 2" in message
        assert param == "messages[0].content[2].image_url.url"


async def test_a_real_server_keeps_its_options_and_its_images(tmp_path: Path) -> None:
    """Both flags, and what the response store makes of an image, through the real process."""
    (tmp_path / "red.png").write_bytes(RED)
    flags = ("--allowed_local_media_path", str(tmp_path), "--allowed_media_domains", "example.org")
    server = start_server(script_graph(tmp_path / "g", VISION), *flags, name="m")
    try:
        answer = (await post(server.url, "chat/completions", chat(user(image(f"{tmp_path}/red.png"))))).json()
        assert SEEN_RED in answer["choices"][0]["message"]["content"]
        message, _ = await refused(server.url, "chat/completions", chat(user(image("http://127.0.0.1/x"))))
        assert "address 127.0.0.1 is not allowed by --allowed_media_domains" in message
        item = {"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]}
        first = (await post(server.url, "responses", {"model": "m", "input": [item]})).json()
        more = {"model": "m", "input": "again", "previous_response_id": first["id"]}
        second = (await post(server.url, "responses", more)).json()
        assert f"user: {SEEN_RED}\n" in second["output"][0]["content"][0]["text"]
        async with httpx.AsyncClient() as client:
            listed = (await client.get(f"{server.url}/v3/responses/{first['id']}/input_items")).json()
        assert listed["data"][0]["content"] == [
            {"type": "input_image", "image_url": data_url(RED), "detail": "auto"}
        ]
    finally:
        server.stop()


async def test_the_bounds_are_options_of_the_server(tmp_path: Path) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
    port = silent.getsockname()[1]
    flags = {
        "--max_images": "2",
        "--max_image_bytes": "5000",
        "--max_image_pixels": "10000",
        "--media_fetch_timeout": "0.2",
        "--allowed_media_domains": "127.0.0.1",
    }
    server = start_server(script_graph(tmp_path / "g", VISION), *itertools.chain(*flags.items()), name="m")
    try:
        for images, why in (
            ([RED] * 3, "3 images are too many; a request may have 2"),
            (["data:image/png;base64," + "A" * 8000], "larger than 5000 bytes"),
            ([picture(size=(200, 60))], "200 x 60 pixels, more than 10,000 in all"),
            ([f"http://127.0.0.1:{port}/red.png"], "it took more than 0.2 s"),
        ):
            body = chat(user(*map(image, images)))
            assert why in (await refused(server.url, "chat/completions", body))[0]
        answer = await post(server.url, "chat/completions", chat(user(image(RED), image(BLUE))))
        assert answer.status_code == 200
    finally:
        server.stop()
        silent.close()

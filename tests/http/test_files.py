"""`input_file` and `file` parts through the API: the text of a file reaches the prompt at its place."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import openai
import pytest

from tests.conftest import Server
from tests.http.conftest import Scripted
from tests.http.responses_harness import serving
from tests.sandbox.images.documents import pdf

ECHO = json.dumps({"replies": [{"echo": True}], "max_length": 300})
DATA = base64.b64encode(pdf("The code is 4711.")).decode()
URL = f"data:application/pdf;base64,{DATA}"
PLAIN = base64.b64encode("Größe: 5".encode()).decode()


def chat_part(data: str | None = DATA, **more: Any) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": data, **more}}


def input_part(data: str | None = DATA, **more: Any) -> dict[str, Any]:
    return {"type": "input_file", "file_data": data, **more}


def chat_body(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], "max_tokens": 200}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


async def test_chat_reads_files_where_they_stand(scripted: Scripted) -> None:
    async with scripted(ECHO) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        parts = [
            text("First"),
            chat_part(filename="a b.pdf"),
            text("between"),
            chat_part(PLAIN),
            text("last"),
        ]
        answer = await client.post("/v3/chat/completions", json=chat_body(*parts))
        assert answer.status_code == 200, answer.text
        said = answer.json()["choices"][0]["message"]["content"]
        assert "First\n[File a b.pdf]\nThe code is 4711.\nbetween\n[File]\nGröße: 5\nlast" in said
        assert "ovserve_file" not in said
        with_url = await client.post("/v3/chat/completions", json=chat_body(chat_part(URL)))
        assert "4711" in with_url.text
        streamed = await client.post("/v3/chat/completions", json=chat_body(chat_part()) | {"stream": True})
        assert "4711" in streamed.text


async def test_responses_read_files_and_keep_them(tmp_path: Any) -> None:
    async with serving(
        tmp_path, store="own", script={"replies": [{"echo": True}], "max_length": 2000}
    ) as running:
        item = {
            "role": "user",
            "content": [input_part(filename="a.pdf"), {"type": "input_text", "text": "Code?"}],
        }
        first = await running.client.responses.create(model="m", input=[item])
        assert "[File a.pdf]\nThe code is 4711.\nCode?" in first.output_text
        listed = (await running.http.get(f"/v3/responses/{first.id}/input_items")).json()["data"][0][
            "content"
        ][0]
        assert listed == {"type": "input_file", "filename": "a.pdf", "file_data": DATA}
        second = await running.client.responses.create(
            model="m", input="again", previous_response_id=first.id
        )
        assert second.output_text.count("The code is 4711.") >= 1
        counted = await running.client.responses.input_tokens.count(model="m", input=[item])
        assert first.usage is not None
        assert counted.input_tokens == first.usage.input_tokens
        output = {"type": "function_call_output", "call_id": "c", "output": [input_part(PLAIN)]}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        answered = await running.client.responses.create(model="m", input=["", call, output][1:])  # type: ignore[arg-type]
        assert "Größe: 5" in answered.output_text


CHAT, RESPONSES = "/v3/chat/completions", "/v3/responses"
AT = {CHAT: "messages[0].content[0].file", RESPONSES: "input[0].content[0]"}


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"file_data": None}, "file_data", "required, but missing"),
    ({"file_data": ""}, "file_data", "got an empty string"),
    ({"file_data": 5}, "file_data", "got 5"),
    ({"file_data": "data:text/plain,hello"}, "file_data", "a data URL with base64"),
    ({"file_data": "@@"}, "file_data", "not valid base64"),
    ({"file_data": base64.b64encode(b"\x00\x01").decode()}, "file_data", "neither a PDF nor text in UTF-8"),
    ({"file_data": base64.b64encode(b"%PDF-1.7").decode()}, "file_data", "it is broken"),
    ({"file_id": "file-1"}, "file_id", "keeps no files, so send file_data; got 'file-1'"),
    ({"file_url": "http://x/a.pdf"}, "file_url", "does not download files"),  # chat has no file_url
]


async def test_refusals(scripted: Scripted, subtests: pytest.Subtests) -> None:
    cases = [(path, *row) for path in (CHAT, RESPONSES) for row in REFUSALS]
    async with scripted(ECHO) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        for path, fields, field, says in cases:
            if path == CHAT and field == "file_url":
                continue
            part = {"type": "file", "file": fields} if path == CHAT else {"type": "input_file", **fields}
            message = {"role": "user", "content": [part]}
            body = {"model": "m", ("messages" if path == CHAT else "input"): [message]}
            with subtests.test(f"{path} {says}"):
                answer = await client.post(path, json=body)
                assert answer.status_code == 400, answer.text
                error = answer.json()["error"]
                assert error["param"] == f"{AT[path]}.{field}"
                assert says in error["message"]


async def test_a_file_that_is_too_long_says_so(scripted: Scripted) -> None:
    long = base64.b64encode(b"word " * 400).decode()
    async with scripted(ECHO) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        answer = await client.post("/v3/chat/completions", json=chat_body(chat_part(long)))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "last message 4" in error["message"], "the text of the file counts as its message"


async def test_tokenize_has_no_files(scripted: Scripted) -> None:
    async with scripted(ECHO) as server, httpx.AsyncClient(base_url=server.url) as client:
        body = {"messages": [{"role": "user", "content": [chat_part()]}]}
        answer = await client.post("/v3/tokenize", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages[0].content[0].type"


def test_the_real_model_reads_a_pdf(server: Server) -> None:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        parts: Any = [
            {"type": "input_file", "filename": "note.pdf", "file_data": URL},
            {"type": "input_text", "text": "Repeat the text of the file."},
        ]
        answer = client.responses.create(
            model="smollm2", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=30
        )
        assert "4711" in answer.output_text


def document(data: str | None = DATA, kind: str = "base64", **more: Any) -> dict[str, Any]:
    return {
        "type": "document",
        "source": {"type": kind, "media_type": "application/pdf", "data": data},
        **more,
    }


async def test_anthropic_s_documents(scripted: Scripted) -> None:
    async with scripted(ECHO) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        result = {"type": "tool_result", "tool_use_id": "t", "content": [document(PLAIN)]}
        parts = [document(title="a b.pdf"), document("as it is", "text"), text("Code?")]
        for content, wanted in (
            (parts, "[File a b.pdf]\nThe code is 4711.\n[File]\nas it is\nCode?"),
            ([result], "[File]\nGröße: 5"),
        ):
            body = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": content}]}
            answer = await client.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
            assert wanted in answer.json()["content"][0]["text"]
            counted = await client.post("/v1/messages/count_tokens", json=body)
            usage = answer.json()["usage"]
            assert counted.json()["input_tokens"] == usage["input_tokens"] + usage.get(
                "cache_read_input_tokens", 0
            )


BAD_DOCUMENTS = [
    ({"type": "document"}, "messages[0].content[0].source: required"),
    ({"type": "document", "source": "x"}, 'messages[0].content[0].source: expected an object, got "x"'),
    (document(None), "messages[0].content[0].source.data: required"),
    (document(None, "text"), "messages[0].content[0].source.data: required"),
    (document("@@"), "not valid base64"),
]


async def test_bad_documents(scripted: Scripted, subtests: pytest.Subtests) -> None:
    async with scripted(ECHO) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        for part, says in BAD_DOCUMENTS:
            body = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": [part]}]}
            for path in ("messages", "messages/count_tokens"):
                with subtests.test(f"{path} {part}"):
                    answer = await client.post(f"/v1/{path}", json=body)
                    assert answer.status_code == 400
                    assert says in answer.json()["error"]["message"]

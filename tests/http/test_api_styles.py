"""Which API style reports an error, and what it makes of each kind; and the paths all clients find (W1, W2, W20)."""

from __future__ import annotations

import json

import httpx
import pytest

from ovserve import errors
from ovserve.http.errors import API_STYLES, HOPELESS, style_of
from tests.conftest import Server

LONG = errors.ContextLengthExceeded("too long", param="prompt")
LONG.details = {"max_length": 10, "prompt_tokens": 12}


@pytest.mark.parametrize(
    ("path", "query", "headers", "name"),
    [
        ("/v3/chat/completions", {}, {}, "openai"),
        ("/v3/chat/completions", {"api-version": "1"}, {"api-key": "k"}, "openai"),
        ("/chat/completions", {}, {}, "openai"),
        ("/chat/completions", {"api-version": "1"}, {}, "azure"),
        ("/chat/completions", {}, {"api-key": "k"}, "azure"),
        ("/chat/completions", {}, {"extra-parameters": "error"}, "azure"),
        ("/completions", {"api-version": "1"}, {}, "openai"),
        ("/info", {}, {}, "azure"),
        ("/v1/messages", {}, {}, "anthropic"),
        ("/v3/v1/messages/count_tokens", {}, {"api-key": "k"}, "anthropic"),
        ("/v1/messages/batches", {}, {}, "anthropic"),
        ("/messages", {}, {}, "anthropic"),
        ("/v3/models/messages", {}, {}, "openai"),
        ("/models", {}, {"anthropic-version": "1"}, "anthropic"),
        ("/models/chat/completions", {}, {"anthropic-version": "1"}, "azure"),
        ("/models/info", {"api-version": "1"}, {"anthropic-version": "1"}, "azure"),
        ("/v2/health/ready", {}, {}, "plain"),
        ("/nowhere", {}, {}, "openai"),
    ],
)
def test_who_tells(path: str, query: dict[str, str], headers: dict[str, str], name: str) -> None:
    assert style_of(path, query, headers).name == name


SAMPLES = [
    errors.InvalidArgument("x: bad"),
    errors.InvalidArgument("x: bad", param="x[0].y"),
    errors.UnsupportedParameter("x: no", param="x"),
    LONG,
    errors.Unauthenticated("no key"),
    errors.ModelNotFound("no model"),
    errors.MethodNotAllowed("no"),
    errors.PayloadTooLarge("big"),
    errors.UnsupportedMediaType("odd"),
    errors.RateLimited("slow down", retry_after=1.5),
    errors.ResourceExhausted("no room"),
    errors.EngineDead("dead", retry_after=2),
    errors.Internal("oops"),
    errors.LoadError("no graph"),
    errors.PermissionDenied("not with this key"),
    errors.TooSlow("late"),
]
EXPECTED = {
    "openai": [400, 400, 400, 400, 401, 404, 405, 413, 415, 429, 503, 503, 500, 500, 403, 408],
    "encoders": [400, 400, 400, 400, 401, 404, 405, 413, 415, 429, 503, 503, 500, 500, 403, 408],
    "plain": [400, 400, 400, 400, 401, 404, 405, 413, 415, 429, 503, 503, 500, 412, 403, 408],
    "ollama": [400, 400, 400, 400, 401, 404, 405, 413, 415, 429, 503, 503, 500, 500, 403, 408],
    "azure": [400, 422, 422, 400, 401, 404, 405, 413, 415, 429, 503, 503, 500, 500, 403, 408],
    "anthropic": [400, 400, 400, 400, 401, 404, 405, 413, 415, 429, 529, 529, 500, 500, 403, 408],
}


@pytest.mark.parametrize("style", API_STYLES, ids=lambda d: d.name)
def test_every_kind(style) -> None:
    assert [style.answer(e).status for e in SAMPLES] == EXPECTED[style.name]
    for error in SAMPLES:
        status, headers, data = style.answer(error)
        body = json.loads(data)
        if style.name == "azure":
            assert body["status"] == status
            assert headers["x-ms-error-code"] == body["code"]
            assert isinstance(body["error"], str)
            assert body["message"] == str(error)
        elif style.name in ("plain", "ollama"):
            assert body == {"error": str(error)}
        elif style.name in ("openai", "encoders"):
            text = str(error) if style.name == "encoders" else None
            assert body.get("message") == body.get("detail") == text
            assert {"message", "type", "param", "code"} <= set(body["error"])
        else:
            assert set(body) == {"type", "error", "request_id"}
            assert set(body["error"]) == {"type", "message"}
        assert ("x-should-retry" in headers) == (error.kind in HOPELESS)
        assert ("retry-after-ms" in headers) == (getattr(error, "retry_after", None) is not None)
        event = style.in_stream(error)
        if style.name == "ollama":
            assert json.loads(event) == body
            continue
        assert event.endswith(b"\n\n")
        assert event.startswith(b"event: error\ndata: " if style.name == "anthropic" else b"data: ")


def test_the_words_agents_look_for() -> None:
    anthropic = next(d for d in API_STYLES if d.name == "anthropic")
    message = json.loads(anthropic.answer(LONG).body)["error"]["message"]
    assert message == "prompt is too long: 12 tokens > 9 maximum. too long"


@pytest.mark.parametrize("prefix", ["", "/v1", "/v3", "/v3/v1"])
def test_openai_s_paths_under_every_prefix(server: Server, prefix: str) -> None:
    with httpx.Client(base_url=server.url + prefix) as client:
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "smollm2", "max_tokens": 1}
        assert client.post("/chat/completions", json=body | {"messages": messages}).status_code == 200
        assert client.post("/completions", json=body | {"prompt": "hi"}).status_code == 200
        assert client.get("/models").json()["data"][0]["id"] == "smollm2"
        for name in ("smollm2", "smollm2:latest"):
            assert client.get(f"/models/{name}").json()["id"] == name
        assert client.get("/models/smollm2:8b").status_code == 404
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/v3/health", "/v3/models", "/v2/health/ready", "/info"])
def test_head(server: Server, path: str) -> None:
    answer = httpx.head(server.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "header", ["x-request-id", "x-client-request-id", "x-ms-client-request-id", "x-correlation-id"]
)
def test_the_client_s_id_comes_back_also_on_errors(server: Server, header: str) -> None:
    for path in ("/v1/messages", "/chat/completions?api-version=1", "/v3/nowhere"):
        answer = httpx.post(server.url + path, json={}, headers={header: "mine-1"})
        assert answer.status_code >= 400
        assert answer.headers["x-request-id"] == "mine-1"
    assert httpx.post(f"{server.url}/v1/messages", json={}).headers["request-id"]

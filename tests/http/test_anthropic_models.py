"""GET models with Anthropic's own client, and what tells it from OpenAI's."""

from __future__ import annotations

import json
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from anthropic.types import ModelInfo

from tests.conftest import Server, script_graph
from tests.http.conftest import Scripted

VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize("base", ["", "/v3"])
def test_the_list_and_one_of_it(server: Server, base: str) -> None:
    with anthropic.Anthropic(base_url=server.url + base, api_key="none", max_retries=0) as client:
        (model,) = list(client.models.list())
        ModelInfo.model_validate_json(model.to_json(), strict=True)
        assert (model.id, model.type, model.display_name) == ("smollm2", "model", "smollm2")
        assert model.created_at.year >= 2024
        assert (model.max_input_tokens, model.lifecycle) == (8192, "active")
        assert client.models.retrieve("smollm2") == model
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.models.retrieve("claude")
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        assert missing.value.body["request_id"] == missing.value.request_id  # type: ignore[index]


def test_others_get_openai_s_shape(server: Server) -> None:
    with openai.OpenAI(base_url=server.v3, api_key="none") as client:
        assert [m.object for m in client.models.list()] == ["model"]
    assert httpx.get(f"{server.v3}/models").json()["object"] == "list"
    assert "error" in httpx.get(f"{server.v3}/models/nobody").json()
    head = httpx.head(f"{server.v3}/models", headers=VERSION)
    assert head.status_code == 200


async def test_pages(scripted: Scripted, tmp_path: Path) -> None:
    async with scripted("{}") as server:
        for name in ("a", "b", "z"):
            await server.manager.load(name, script_graph(tmp_path / name, "{}"))
        async with httpx.AsyncClient(base_url=server.url, headers=VERSION) as client:

            async def page(**query: object) -> tuple[list[str], bool, str | None, str | None]:
                answer = await client.get("/v1/models", params=query)  # type: ignore[arg-type]
                assert answer.status_code == 200, answer.text
                got = answer.json()
                assert set(got) == {"data", "has_more", "first_id", "last_id"}
                return [m["id"] for m in got["data"]], got["has_more"], got["first_id"], got["last_id"]

            assert await page() == (["a", "b", "m", "z"], False, "a", "z")
            assert await page(limit=3) == (["a", "b", "m"], True, "a", "m")
            assert await page(limit=3, after_id="m") == (["z"], False, "z", "z")
            assert await page(limit=1, before_id="m") == (["b"], True, "b", "b")
            assert await page(before_id="a") == ([], False, None, None)
            async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as real:
                assert [m.id async for m in real.models.list(limit=1)] == ["a", "b", "m", "z"]
            for query, says in (
                ({"limit": "0"}, "limit: expected 1 to 1000, got '0'"),
                ({"limit": "5.5"}, "limit"),
                ({"after_id": "q"}, "after_id: 'q' is not one of the models"),
                ({"after_id": "a", "before_id": "b"}, "before_id"),
            ):
                bad = await client.get("/v1/models", params=query)
                assert bad.status_code == 400
                error = json.loads(bad.text)
                assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
                assert says in error["error"]["message"]

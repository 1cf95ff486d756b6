"""What the server says of itself is what it does: /openapi.json, capabilities, the states of the models."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Model

from ovserve.api.openai.describe import parameters
from ovserve.calculators.shipped import MODULES
from ovserve.graph import Registry
from ovserve.http.app import build_app
from ovserve.http.connections import RestLimits
from ovserve.http.middleware import CONSOLE_API
from ovserve.http.openapi import OPERATIONS, VERSIONS, document, paths_of
from ovserve.http.routes.describe import routes_of
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.serving.manager import Manager
from tests.conftest import eventually, script_graph
from tests.http.conftest import Scripted

ROUTES = routes_of(build_app(Manager(Registry(MODULES)), RestLimits(1 << 20, 1)))
ASKED = [o for o in OPERATIONS if o.request is not None]


def test_every_route_is_documented() -> None:
    documented = [
        (operation.method, re.sub(r"\{\w+\}", "x", path))
        for operation, paths in paths_of(ROUTES, OPERATIONS).items()
        for path in paths
    ]
    public = [(method, route) for method, route in ROUTES if not route.pattern.startswith(CONSOLE_API)]
    assert [
        f"{method} {route.pattern}"
        for method, route in public
        if not any(method == other and route.fullmatch(path) for other, path in documented)
    ] == []


def test_every_documented_operation_is_routed() -> None:
    served = paths_of(ROUTES, OPERATIONS)
    assert [o.path for o in OPERATIONS if o not in served] == []
    assert all(paths[0] == o.path for o, paths in served.items())


def test_every_endpoint_of_a_graph_is_documented() -> None:
    names = {o.name.removeprefix("/") for o in ASKED}
    # Azure's are variants of one path, which is documented there.
    assert {n for n in ENDPOINTS if not n.startswith("azure")} <= names


def test_references_of_the_document_resolve_and_ids_differ() -> None:
    made = document(ROUTES)
    text = json.dumps(made)
    for ref in {part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]}:
        assert ref in made["components"]["schemas"]
    ids = [one["operationId"] for item in made["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))


def test_every_parameter_has_its_sentence_and_no_table_names_another(subtests: pytest.Subtests) -> None:
    for operation in ASKED:
        with subtests.test(operation.name):
            rows = {row.name: row for row in parameters(operation)}
            assert [name for name, row in rows.items() if not row.why] == []
            fields = {name for name, row in rows.items() if row.status != "rejected"}
            assert set(operation.reported) | set(operation.defaults) <= fields
            assert not fields & set(operation.refused)


async def test_capabilities_are_those_of_the_model(scripted: Scripted) -> None:
    script = {
        "max_length": 500,
        "generation_config": {"temperature": 0.3, "max_new_tokens": 77, "stop_strings": ["END"]},
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    async with scripted(json.dumps(script)) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = (await client.get("/v3/capabilities", params={"model": "m"})).json()
        (model,) = answer["data"]
        assert (model["model"], model["state"], model["max_model_len"]) == ("m", "AVAILABLE", 500)
        (chat,) = [e for e in model["endpoints"] if e["endpoint"] == "chat/completions"]
        rows = {row["name"]: row for row in chat["parameters"]}
        assert rows["temperature"]["default"] == 0.3
        assert rows["max_tokens"]["default"] == 77
        assert rows["stop"]["default"] == ["END"]
        assert rows["best_of"]["schema"]["maximum"] == 20
        assert rows["reasoning_effort"]["status"] == "ignored"
        assert rows["logit_bias"]["status"] == "supported"
        assert (await client.get("/v3/capabilities")).json() == answer
        assert (await client.get("/v3/capabilities", params={"model": "x"})).status_code == 404


async def test_capabilities_without_a_chat_template(scripted: Scripted) -> None:
    async with (
        scripted('{"chat_template": ""}') as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        (model,) = (await client.get("/v1/capabilities")).json()["data"]
        able = {e["endpoint"]: e["available"] for e in model["endpoints"]}
        assert able["completions"]
        assert not able["chat/completions"]


def test_azure_s_errors_have_their_status() -> None:
    for path, item in document(ROUTES)["paths"].items():
        for operation in item.values():
            if "AzureError" in json.dumps(operation):
                assert "422" in operation["responses"], path


async def test_a_path_takes_the_methods_of_the_document(
    scripted: Scripted, tmp_path: Path, subtests: Any
) -> None:
    """Another path with a name in it, such as GET /models/{model}, takes no further methods of this one."""
    async with scripted("{}") as running, httpx.AsyncClient(base_url=running.url) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        places = [
            (p, o, b) for p, o in paths.items() for b in (VERSIONS if p.startswith("/v3/") else ["/v3"])
        ]
        for documented, operations, base in places:
            path = re.sub(r"\{\w+\}", "nobody", documented.replace("/v3", base, 1))
            own = {method.upper() for method in operations}
            for method in {"GET", "POST", "DELETE"} - own:
                with subtests.test(method=method, path=path):
                    answer = await client.request(method, path)
                    assert answer.status_code == 405
                    assert set(answer.headers["allow"].split(", ")) == own
        assert (await client.get("/models/embeddings")).headers["allow"] == "POST"
        await running.manager.load("embeddings", script_graph(tmp_path / "second", "{}"))
        assert (await client.get("/models/embeddings")).json()["id"] == "embeddings"


async def test_models_show_the_state_of_their_graph(scripted: Scripted, tmp_path: Any) -> None:
    async with scripted("{}") as running, httpx.AsyncClient(base_url=running.url) as client:
        (model,) = (await client.get("/v3/models")).json()["data"]
        assert Model.model_validate(model).id == "m"
        assert (model["state"], model["max_model_len"]) == ("AVAILABLE", 4096)
        assert (await client.get("/v3/models/m")).json() == model
        slow = script_graph(tmp_path / "slow", '{"load": "hang"}')
        loading = asyncio.create_task(running.manager.load("slow", slow))
        await eventually(lambda: len(running.manager.statuses()) == 2)
        second = (await client.get("/v3/models")).json()["data"][1]
        assert (second["id"], second["state"], second["max_model_len"]) == ("slow", "LOADING", None)
        assert (await client.get("/v3/models/slow")).json() == second
        (slow / "go").touch()
        await loading
        assert (await client.get("/v3/models/slow")).json()["state"] == "AVAILABLE"
        assert (await client.get("/v3/models/none")).status_code == 404


async def test_models_show_an_engine_that_restarts(scripted: Scripted, tmp_path: Path) -> None:
    async with scripted("{}") as running, httpx.AsyncClient(base_url=running.url) as client:
        (tmp_path / "graph/model.script.json").write_text('{"load": "hang"}')  # the next engine reads it
        os.kill(running.engine.pid, signal.SIGKILL)
        await eventually(lambda: running.engine.state.name == "restarting")
        model = (await client.get("/v3/models/m")).json()
        assert model["state"] == "LOADING"
        assert model["reason"]


async def test_null_is_as_good_as_absent_for_every_optional_parameter(scripted: Scripted) -> None:
    """docs/api.md promises it; the rows are those of that document."""
    async with scripted("{}") as running, httpx.AsyncClient(base_url=running.url, timeout=230) as client:
        for operation in ASKED:
            if operation.declared or not operation.of_models or operation.path.endswith(":predict"):
                continue
            body = {**operation.example, "model": "m"}
            if "tokens" in {row.name for row in parameters(operation)}:
                body["tokens"] = [1]  # detokenize
            path = operation.path.replace("{deployment}", "m").replace("{model}", "m")
            plain = await client.post(path, json=body)
            assert plain.status_code == 200, plain.text
            for row in parameters(operation):
                if row.required or "." in row.name or "[" in row.name or row.name in body:
                    continue
                answer = await client.post(path, json=body | {row.name: None})
                told = f"{operation.path}: {row.name}: null: {answer.text}"
                assert answer.status_code == 200, told
                name = "x-ovserve-ignored-params"
                assert answer.headers.get(name) == plain.headers.get(name), told

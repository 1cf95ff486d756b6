"""Every kind of change, by every way to make a server take it up, while clients stream and ask: nobody's answer
fails, is cut or mixed, or comes from a version that was never announced; what is replaced goes away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.reload.site import TRIGGERS, Clients, Site, script, site

pytestmark = pytest.mark.asyncio(loop_scope="module")
FIRST = {"x": "old", "keep": "kept"}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=TRIGGERS)
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    root = tmp_path_factory.mktemp("reload") / "site"
    async with site(root, TRIGGERS[request.param], **FIRST) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def here(shared: Site) -> AsyncIterator[Site]:
    """Two graphs, "x" and "keep"; the tests change "x"."""
    yield shared
    await shared.reset(**FIRST)


async def test_add(here: Site) -> None:
    async with here.clients("x", "keep") as clients:
        added = here.write_graph("added", script("new", load="hang"))
        here.configure(x="x", keep="keep", added="added")
        firing = asyncio.create_task(here.fire())
        assert await _first_state(here, "added") in ("START", "LOADING")
        early = await here.ask("added", stream=True)
        assert (early.status, "is loading" in early.text) == (503, True)
        (added / "go").touch()
        await here.until("added", "AVAILABLE")
        assert (await here.ask("added", stream=True)).version == "new"
        await clients.round()
        await firing
    _untouched(clients, x="old", keep="kept")
    await here.until_engines(3)


async def test_remove(here: Site) -> None:
    async with here.clients("x", "keep") as clients:
        here.configure(keep="keep")
        await here.fire()
        await here.until("x", "END")
        await clients.round()
    _untouched(clients, keep="kept")
    answers = clients.of("x")
    assert {a.version for a in answers if a.status == 200} == {"old"}
    refused = [a.status for a in answers].index(404)
    assert {a.status for a in answers[refused:]} == {404}
    await here.until_engines(1)


async def test_modify_well(here: Site) -> None:
    async with here.clients("x", "keep") as clients:
        before = here.engines()
        here.write_graph("x", script("new"))
        await here.fire()
        await here.until_version("x", "new")
        await clients.round()
    _untouched(clients, keep="kept")
    versions = clients.versions("x")
    assert versions == sorted(versions, reverse=True), "once the new one answers, the old one gets no request"
    assert {*versions} == {"old", "new"}
    assert len(await here.until_engines(2) & before) == 1


@pytest.mark.parametrize("what", ["graph", "model", "missing"])
async def test_modify_badly(here: Site, what: str) -> None:
    graph = here.root / "x/graph.pbtxt"
    good = graph.read_text()
    async with here.clients("x", "keep") as clients:
        before = here.engines()
        if what == "graph":
            graph.write_text(good.replace("LLMExecutorCalculator", "NoSuchCalculator"))
        elif what == "model":
            here.write_graph("x", script("never", load="fail"))
        else:
            graph.unlink()
        await here.fire()
        reason = await here.until("x", "AVAILABLE", "FAILED_PRECONDITION")
        expected = {"graph": "NoSuchCalculator", "model": "loading fails", "missing": "does not exist"}
        assert expected[what] in reason
        (model,) = [m for m in (await here.http.get("/v3/models")).json()["data"] if m["id"] == "x"]
        assert (model["state"], model["reason"]) == ("AVAILABLE", reason)
        await clients.round()
        here.write_graph("x", script("old"))
        graph.write_text(good)
        await here.fire()
        await here.until("x", "AVAILABLE")
        await clients.round()
    _untouched(clients, x="old", keep="kept")
    assert await here.until_engines(2) == before


async def test_repair_model_files_only(here: Site) -> None:
    here.write_graph("z", script("repaired"))
    model = here.model_file("z")
    aside = model.rename(model.with_name("aside"))
    here.configure(x="x", keep="keep", z="z")
    async with here.clients("x", "keep") as clients:
        await here.fire()
        reason = await here.until("z", "LOADING", "FAILED_PRECONDITION")
        assert "model.script.json does not exist" in reason
        assert (await here.ask("z", stream=True)).status == 503
        aside.rename(model)
        await here.fire()
        await here.until("z", "AVAILABLE")
        assert (await here.ask("z", stream=True)).version == "repaired"
    _untouched(clients, x="old", keep="kept")


async def test_touch_only(here: Site) -> None:
    async with here.clients("x", "keep") as clients:
        before, loads = here.engines(), here.loads("x")
        for file in (here.root / "config.json", here.root / "x/graph.pbtxt", here.model_file("x")):
            file.write_bytes(file.read_bytes())
            os.utime(file, (1, 1))
        await here.fire()
        # The next change is taken up after this one was looked at.
        here.write_graph("y", script("new"))
        here.configure(x="x", keep="keep", y="y")
        await here.fire()
        await here.until("y", "AVAILABLE")
        await clients.round()
    _untouched(clients, x="old", keep="kept")
    assert before < here.engines()
    assert here.loads("x") == loads


async def test_rename(here: Site) -> None:
    async with here.clients("x", "keep") as clients:
        before = here.engines()
        here.configure(renamed="x", keep="keep")
        await here.fire()
        await here.until("renamed", "AVAILABLE")
        await here.until("x", "END")
        assert (await here.ask("renamed", stream=True)).version == "old"
        await clients.round()
    _untouched(clients, keep="kept")
    assert {a.version for a in clients.of("x") if a.status == 200} == {"old"}
    assert {a.status for a in clients.of("x")} == {200, 404}
    assert here.engines() == before, "the engine is taken over"


async def _first_state(here: Site, name: str) -> str:
    while True:
        if (state := (await here.states()).get(name)) is not None:
            return state[0]


def _untouched(clients: Clients, **versions: str) -> None:
    for model, version in versions.items():
        assert {*clients.versions(model)} == {version}

"""Graphs that name a .gguf file: converted once at load for the paged engine, else read by OpenVINO GenAI."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.host.memory import Memory, memory
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.server.build import convert_when_loaded
from ovserve.serving.config.file import GraphsDirectory
from ovserve.serving.engines import AnyEngine
from ovserve.serving.manager import Manager
from ovserve.serving.settings import ServingSettings
from tests.conftest import script_graph
from tests.engine import tiny

F32 = '{"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}'
log = logging.getLogger("conversions")


def graph(root: Path, name: str, options: str = "") -> Path:
    """A graph whose model is root.parent/tiny.gguf."""
    directory = script_graph(root / name, "{}")
    file = directory / "graph.pbtxt"
    options = f"models_path: \"../../tiny.gguf\" plugin_config: '{F32}' {options}"
    file.write_text(file.read_text().replace('models_path: "model.script.json"', options))
    return directory


@asynccontextmanager
async def managing(tmp_path: Path, available: Memory | None = None) -> AsyncIterator[Manager]:
    tiny.write(tmp_path / "tiny.gguf", tiny.table())
    convert = partial(convert_when_loaded, repository=tmp_path / "models", say=log.info)
    settings = ServingSettings(convert=convert, memory=lambda: available or memory())
    manager = Manager(Registry(MODULES), settings, repository=GraphsDirectory(tmp_path / "graphs"))
    try:
        yield manager
    finally:
        await manager.stop()


def engine_of(manager: Manager, name: str) -> AnyEngine:
    (engine,) = manager.get(name).engines.values()
    return engine


async def text_of(engine: AnyEngine) -> str:
    sampling = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
    stream = await engine.generate(
        GenerateRequest("r", ("abc",), add_special_tokens=False, sampling=sampling)
    )  # type: ignore[attr-defined]
    text = ""
    while True:
        delta = await stream.next()
        text += delta.text
        if delta.last:
            return text


@pytest.mark.long
async def test_it_is_converted_once_and_answers_as_the_library(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, options in (("a", ""), ("b", "best_of_limit: 3"), ("library", 'engine: "genai"')):
        graph(tmp_path / "graphs", name, options)
    async with managing(tmp_path) as manager:
        await manager.reload()
        engines = {name: engine_of(manager, name) for name in ("a", "b", "library")}
        assert engines["a"] is engines["b"], "graphs over one file share an engine"
        assert engines["a"].spec.decoding == "paged"  # type: ignore[attr-defined]
        assert engines["a"].spec.model_path == str(tmp_path / "models/tiny")
        assert engines["library"].spec.model_path.endswith("tiny.gguf")
        assert await text_of(engines["a"]) == await text_of(engines["library"])
        assert sum("converting tiny.gguf" in text for text in caplog.messages) == 1
        caplog.clear()
        await manager.unload("a")
        await manager.unload("b")
        await manager.load("a", tmp_path / "graphs/a")
        assert engine_of(manager, "a") is not engines["a"]
        assert not any("converting tiny.gguf" in text for text in caplog.messages)


@pytest.mark.long
async def test_the_library_reads_a_file_that_cannot_be_converted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph(tmp_path / "graphs", "any")
    (tmp_path / "models").write_text("not a directory")
    async with managing(tmp_path) as manager:
        await manager.reload()
        assert engine_of(manager, "any").spec.decoding == "plain"  # type: ignore[attr-defined]
        assert "OpenVINO GenAI's engine is used: not converted: " in caplog.text
        named = graph(tmp_path / "named", "paged", 'engine: "paged"')
        with pytest.raises(LoadError, match="not converted: .*models") as caught:
            await manager.load("paged", named)
        assert (caught.value.field, caught.value.line > 0) == ("engine", True)


async def test_memory_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    graph(tmp_path / "graphs", "any")
    async with managing(tmp_path, Memory(200 << 20, "container")) as manager:
        with pytest.raises(LoadError, match="it would take about .* the container has 200 MB left"):
            await manager.load("any", tmp_path / "graphs/any")
    assert not (tmp_path / "models").exists()

"""Requests that a graph answers before it is served."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.settings import EngineSettings
from ovserve.graph import Registry
from ovserve.serving.config.file import ConfigFile
from ovserve.serving.manager import Manager
from ovserve.serving.settings import ServableSpec, ServingSettings
from tests.conftest import script_graph

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT | {"stream": True}}


@asynccontextmanager
async def managing(seconds: float = 230) -> AsyncIterator[Manager]:
    manager = Manager(Registry(MODULES), ServingSettings(EngineSettings(ready_timeout=seconds)))
    try:
        yield manager
    finally:
        await manager.stop()


def graph(root: Path, *lines: object, **script: object) -> ServableSpec:
    directory = script_graph(root / "m", json.dumps(script))
    written = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (directory / "warmup.jsonl").write_text("\n".join(written))
    return ServableSpec.of_directory("m", directory)


async def test_each_line_is_answered_before_the_graph_is_served(tmp_path: Path) -> None:
    async with managing() as manager:
        spec = graph(tmp_path, CHAT, "", BATCH, {"prompt": "hi"})
        result = await manager.replace([spec])
        assert not result.failed, result.errors
        assert manager.metrics.of("m").finished == 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "expected a JSON object"),
        ({"messages": []}, "messages"),
        ({"documents": []}, "no endpoint of the graph"),
        ({"url": "/v1/embeddings", "body": {"input": "x"}}, "is not served by model 'm'"),
        ({"url": "/v1/chat/completions"}, "body: expected an object"),
        ({"url": 7, "body": {}}, "url: expected a path"),
        ({"prompt": "bad"}, "no more of it"),
        ('{"a": "\\ud800"}', "expected a JSON object"),
    ],
)
async def test_a_line_that_fails_names_file_and_number(tmp_path: Path, line: object, why: str) -> None:
    script = {"replies": [{"match": "bad", "refuse": "resource_exhausted"}]}
    why = "" if why == "no more of it" else why
    async with managing() as manager:
        result = await manager.replace([graph(tmp_path, CHAT, line, **script)])
        assert "warmup.jsonl:2: " in result.errors
        assert why in result.errors
        assert manager.engines == 0, "the engine is given back"


async def test_the_time_is_bounded(tmp_path: Path) -> None:
    async with managing(5) as manager:
        endless = {"text": "word ", "repeat": 0, "step_seconds": 0.05}
        result = await manager.replace(
            [graph(tmp_path, {"prompt": "x", "max_tokens": 3000}, replies=[endless])]
        )
        assert "warmup.jsonl:1: the requests were not answered after 5 s" in result.errors
        assert manager.engines == 0


async def test_a_file_that_an_entry_names_has_to_be_there(tmp_path: Path) -> None:
    graph(tmp_path)
    config = tmp_path / "config.json"
    entry = {"name": "m", "base_path": "m", "warmup_file": "../first.jsonl"}
    config.write_text(json.dumps({"mediapipe_config_list": [entry]}))
    (spec,) = ConfigFile(config).read().specs
    async with managing() as manager:
        assert "first.jsonl: warmup_file: the file does not exist" in (await manager.replace([spec])).errors
        (tmp_path / "first.jsonl").write_text(json.dumps(CHAT))
        assert not (await manager.replace([spec])).failed
        assert manager.metrics.of("m").finished == 1


async def test_a_plain_model_takes_bodies_of_kserve(tmp_path: Path, plain_models: Path) -> None:
    file, config = tmp_path / "w.jsonl", tmp_path / "config.json"
    entry = {"name": "dummy", "base_path": str(plain_models / "dummy")}
    config.write_text(json.dumps({"model_config_list": [{"config": entry}]}))
    (spec,) = ConfigFile(config).read().specs
    tensor = {"name": "b", "shape": [1, 10], "datatype": "FP32", "data": [1.0] * 10}
    async with managing() as manager:
        file.write_text(json.dumps({"inputs": [tensor]}))
        assert not (await manager.replace([replace(spec, warmup=file)])).failed
        file.write_text(json.dumps({"inputs": [tensor | {"shape": [1, 9]}]}))
        (tmp_path / "other.jsonl").write_text(file.read_text())
        result = await manager.replace([replace(spec, warmup=tmp_path / "other.jsonl")])
        assert "other.jsonl:1: " in result.errors

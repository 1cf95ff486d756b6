"""Mistakes of operators: each message names the file and, where there is one, its line."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.spare import Spare
from ovserve.engine.protocol.specs import TextFacts, TextSpec
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.kinds.text.resource import fingerprint
from ovserve.sandbox.templates import Templates
from ovserve.serving.check import find, report
from ovserve.serving.manager import Manager
from ovserve.serving.settings import ServingSettings
from tests.conftest import script_graph

SETTINGS = ServingSettings(EngineSettings(ready_timeout=60))
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
MODEL = 'models_path: "model.script.json"'


def graph(directory: Path, options: str = MODEL, **script: str) -> Path:
    script_graph(directory, json.dumps(script))
    file = directory / "graph.pbtxt"
    file.write_text(file.read_text().replace(MODEL, options))
    return directory


def own_template(directory: Path) -> None:
    (graph(directory, f'{MODEL}\n      chat_template_path: "t.jinja"') / "t.jinja").write_text("a\n{{ x\n")


def pointer(directory: Path) -> None:
    (graph(directory, 'models_path: "x.gguf"') / "x.gguf").write_text(POINTER)


def pointers(directory: Path) -> None:
    (graph(directory, 'models_path: "m"') / "m").mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (directory / "m" / name).write_text(POINTER if name.endswith(".bin") else "<net/>")


def raising(directory: Path) -> None:
    (graph(directory) / "calculators.py").write_text("import os\n\nos.nope()\n")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda d: graph(d, chat_template="one\n{% for %}"),
            r"graph\.pbtxt:\d+: .*the model's own: .*line 2: ",
        ),
        (own_template, r"graph\.pbtxt:\d+: .*chat_template_path: t\.jinja: .*line \d: "),
        (
            lambda d: graph(d, 'models_path: "none"'),
            r"graph\.pbtxt:\d+: .*models_path: .*none does not exist",
        ),
        (pointer, r"x\.gguf: a Git LFS pointer instead of the file; `git lfs pull` fetches it"),
        (pointers, r"m/openvino_model\.bin: a Git LFS pointer"),
        (raising, r"calculators\.py:3: AttributeError: module 'os' has no attribute 'nope'"),
    ],
)
async def test_a_check_and_a_load_say_where(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(tmp_path / "g")
    registry, templates = Registry(MODULES), Templates()
    try:
        (spec,) = find(tmp_path / "g").specs
        found = await report(spec, registry, templates)
    finally:
        await templates.stop()
    assert len(found.errors) == 1
    manager = Manager(registry, SETTINGS)
    try:
        with pytest.raises(LoadError, match=says) as raised:
            await manager.load("g", tmp_path / "g")
    finally:
        await manager.stop()
    assert found.errors == [str(raised.value)] or "LFS" in says


@pytest.mark.parametrize("engine", ["paged", "genai"])
@pytest.mark.parametrize("name", ["openvino_model.bin", "openvino_tokenizer.xml"])
async def test_a_file_that_was_copied_in_part_is_named(
    tmp_path: Path, short_model: Path, engine: str, name: str
) -> None:
    """OpenVINO only says "Incorrect weights in bin file!"."""
    file = shutil.copytree(short_model, tmp_path / "m") / name
    os.truncate(file, file.stat().st_size // 2)
    graph(tmp_path / "g", f'models_path: "{file.parent}" engine: "{engine}"')
    manager = Manager(Registry(MODULES), SETTINGS)
    try:
        with pytest.raises(LoadError, match=f"{file} is truncated: it has|{file}:.*not XML"):
            await manager.load("g", tmp_path / "g")
    finally:
        await manager.stop()


@pytest.mark.parametrize("name", ["../../a", "a/../b", "/a", "a//b", "a/", ".", "a\nb"])
async def test_a_name_that_is_no_part_of_a_path(tmp_path: Path, name: str) -> None:
    graph(tmp_path / "g")
    config = tmp_path / "config.json"
    listed = [{"config": {"name": name, "base_path": "g"}}, {"config": {"name": "team/a", "base_path": "g"}}]
    config.write_text(json.dumps({"model_config_list": listed}, indent=1))
    registry, templates = Registry(MODULES), Templates()
    try:
        wrong, right = [await report(spec, registry, templates) for spec in find(config).specs]
    finally:
        await templates.stop()
    assert wrong.errors == [f"{config}:4: {wrong.spec.wrong_name}"]
    assert repr(name) in wrong.errors[0]
    assert not right.errors


async def test_a_missing_graph_of_a_configuration_has_its_line(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_config_list": [{"config": {"name": "gone"}}]}, indent=1))
    registry, templates = Registry(MODULES), Templates()
    (spec,) = find(config).specs
    found = await report(spec, registry, templates)
    await templates.stop()
    assert found.errors[0].startswith(f"{config}:4: {tmp_path}/gone/graph.pbtxt does not exist")


async def test_graphs_that_differ_in_their_calculators_have_their_own_fingerprints(tmp_path: Path) -> None:
    code = "from ovserve.graph import Calculator, calculator\n@calculator('Mine')\nclass Mine(Calculator):\n    pass\n"
    found = []
    manager = Manager(Registry(MODULES), SETTINGS)
    try:
        graph(tmp_path / "g")
        for text in ("", code, code + "# 2\n", code):
            if text:
                (tmp_path / "g/calculators.py").write_text(text)
            servable = await manager.load("g", tmp_path / "g")
            found.append(servable.side_packets["llm"].fingerprint)
    finally:
        await manager.stop()
    assert len(set(found)) == 3
    assert found[1] == found[3]
    assert found[0] != fingerprint(TextSpec(str(tmp_path)), TextFacts())


async def test_a_spare_that_no_one_needs_ends_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Spare():
            pass
    assert not [record for record in caplog.records if record.name.startswith("ovserve.")]

"""The graphs that ship: each is loaded with its engine, which generates a token, and the calculator of one of them
does what it says. That each graph is right without its engine is tested in test_architecture.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.pull.convert import convert
from ovserve.pull.run import convert_for_serving, verify
from tests.conftest import ROOT

GRAPHS = sorted(p.parent for p in (ROOT / "graphs").rglob("graph.pbtxt"))


@pytest.fixture(scope="module")
def draft(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ir")
    convert(model, made, print)
    return made


def missing_models(graph: str) -> list[str]:
    """The names of models that the graph needs and that nobody has pulled."""
    names = re.findall(rf'"{re.escape(str(ROOT))}/models/([^/"]+)', graph)
    return sorted({name for name in names if not (ROOT / "models" / name).exists()})


def fetching(name: str) -> str:
    return "`make image-model`" if name == "image" else f"`ovserve pull {name}`"


@pytest.mark.slow
@pytest.mark.parametrize("directory", [g for g in GRAPHS if g.name != "ocr"], ids=lambda p: p.name)
def test_every_mode_loads_and_generates(
    directory: Path, model: Path, draft: Path, vision_model: Path, tmp_path: Path
) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    graph = tmp_path / "graph.pbtxt"
    text = graph.read_text().replace("../../models/smollm2-ir", str(draft))
    text = text.replace("../../models/vision", str(vision_model))
    if directory.name != "rerank":  # which reads directories only
        text = text.replace("../../models/qwen2.5-coder-0.5b", str(model))
    text = text.replace("../../models/smollm2", str(model.parent))
    text = text.replace("../../models/", f"{ROOT}/models/")
    graph.write_text(text)
    if missing := missing_models(text):
        pytest.skip(
            f"no models of these names in models/; they are made by {', '.join(map(fetching, missing))}"
        )
    converted = partial(convert_for_serving, repository=tmp_path / "models", say=print)
    assert "verified: loaded in" in asyncio.run(verify(tmp_path, converted))


def test_the_reference_lists_every_graph() -> None:
    text = (ROOT / "docs/graphs.md").read_text()
    section = text.partition("## Graphs that ship")[2].partition("\n## ")[0]
    assert set(re.findall(r"`graphs/(\w+)`", section)) == {g.name for g in GRAPHS}


async def test_the_custom_calculator_makes_answers_greedy() -> None:
    file = ROOT / "graphs/custom_calculator/calculators.py"
    spec = importlib.util.spec_from_file_location("custom_calculator", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = GenerateRequest("1", ("hi",), True, Sampling(temperature=1.5, max_tokens=7))
    node = 'input_stream: "GENERATE:a" output_stream: "GENERATE:b"'
    out = await CalculatorRunner(module.Repeatable, node).run({"a": [asked]})
    (packet,) = out["b"]
    assert packet.value.sampling == Sampling(temperature=0.0, max_tokens=7)
    assert asked.sampling.temperature == 1.5

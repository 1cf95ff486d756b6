"""The classes of docs/calculators.md: each loads in the place of the one that ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.graph import Registry
from ovserve.serving.loader import check_graph
from tests.conftest import MODEL, ROOT

PAGE = (ROOT / "docs/calculators.md").read_text().partition("## One of each")[2]
PLACES = {
    "guardrail": ("PromptGuardCalculator", "NoCasinoCalculator"),
    "pii_mask": ("MaskPiiCalculator", "MaskEmailCalculator"),
    "router": ("RouterCalculator", "CodeSwitchCalculator"),
    "cascade": ("CascadeCalculator", "HedgingCalculator"),
    "retrieval": ("RetrievalCalculator", "TodayCalculator"),
}
OPTIONS = re.compile(
    r"  node_options \{\n    \[type.googleapis.com/google.protobuf.Struct\].*?\n    \}\n  \}\n", re.DOTALL
)


@pytest.mark.parametrize("name", PLACES)
def test_the_documented_class_fits_the_graph(name: str, tmp_path: Path, model: Path) -> None:
    shipped, mine = PLACES[name]
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "calculators.py").write_text(block)
    text = (ROOT / "graphs" / name / "graph.pbtxt").read_text().replace(f'"{shipped}"', f'"{mine}"')
    text = text.replace("../../models/qwen2.5-coder-0.5b", str(MODEL))
    nodes = re.split(r"(?m)^(?=node \{)", text.replace("../../models", str(MODEL.parents[1])))
    text = "".join(OPTIONS.sub("", node) if mine in node else node for node in nodes)
    if name == "retrieval":  # the documented one names no sources
        text = text.replace('  output_stream: "TEXT:sources"\n', "").replace("PARSED:cited", "PARSED:parsed")
        text = re.sub(r'node \{\n  name: "Citations".*?\n\}\n\n', "", text, flags=re.DOTALL)
    (tmp_path / "graph.pbtxt").write_text(text)
    graph, _ = check_graph(tmp_path, Registry(MODULES))
    assert mine in [plan.node.calculator for plan in graph.plan.nodes]

"""Runs the graphs of an OVMS checkout that consist of session and inference nodes, unchanged.

    python -m scripts.acceptance OVMS_SRC

Models of the names that they use are made by `scripts/dummy_models.py`. Each graph is served, asked over KServe
with inputs of ones, and its outputs are compared with what its models compute. Exit code 1 if one differs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from ovserve.errors import LoadError
from ovserve.graph.config import load_graph
from scripts.dummy_models import write
from tests.conftest import start_process

RUN = {"OpenVINOModelServerSessionCalculator", "OpenVINOInferenceCalculator", "OVMSOVCalculator"}
# What the outputs are when every input is 1, by the models of a graph.
OUTPUTS = {("dummy",): 2.0, ("add",): 2.0, ("scalar",): 1.0, ("add", "dummy"): 3.0}
# It names an output that OVMS's own model does not have: what the load says of it.
WRONG = {
    "graph_two_inputs_model.pbtxt": "'SUM:out' is 'out', and model 'add' has no such output; it has 'sum'"
}


def candidates(source: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Graphs by a name of their own, with the names of their models."""
    found = {}
    for path in sorted(source.rglob("*.pbtxt")):
        try:
            nodes = load_graph(path).message.node
        except LoadError:
            continue
        models = tuple(sorted(set(re.findall(r'servable_name:\s*"([^"]+)"', path.read_text()))))
        if {node.calculator for node in nodes} <= RUN and models in OUTPUTS:
            name = re.sub(r"\W+", "_", str(path.relative_to(source).with_suffix("")))
            found[name] = (path, models)
    return found


def refused(url: str, name: str, said: str) -> str:
    """Return the state of a graph that must not load; empty if it says so."""
    state = json.dumps(httpx.get(f"{url}/v1/config").json()[name])
    return "" if said in state else state


def ask(url: str, name: str, wanted: float) -> str:
    """Return what is wrong with a graph's answer; empty if nothing is."""
    meta = httpx.get(f"{url}/v2/models/{name}")
    if meta.status_code != 200:
        return meta.text
    inputs: list[dict[str, Any]] = []
    for end in meta.json()["inputs"]:
        shape = [max(1, size) for size in end["shape"]]
        inputs.append({**end, "shape": shape, "data": [1.0] * (10 if shape else 1)})
    answer = httpx.post(f"{url}/v2/models/{name}/infer", json={"inputs": inputs})
    if answer.status_code != 200:
        return answer.text
    wrong = [o["name"] for o in answer.json()["outputs"] if {*o["data"]} != {wanted}]
    return f"outputs {wrong} are not {wanted}: {answer.text[:300]}" if wrong else ""


def main(source: Path) -> int:
    graphs = candidates(source)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write(root / "models")
        entries = [{"name": m, "base_path": f"models/{m}"} for m in ("dummy", "add", "scalar")]
        for name, (path, _) in graphs.items():
            (root / name).mkdir()
            (root / name / "graph.pbtxt").write_bytes(path.read_bytes())
            entries.append({"name": name})
        config = root / "config.json"
        config.write_text(json.dumps({"model_config_list": [{"config": entry} for entry in entries]}))
        server = start_process("--config_path", str(config))
        try:
            wrong = {
                name: refused(server.url, name, WRONG[path.name])
                if path.name in WRONG
                else ask(server.url, name, OUTPUTS[models])
                for name, (path, models) in graphs.items()
            }
        finally:
            server.stop()
    for name, why in wrong.items():
        print(f"{'ok ' if not why else 'WRONG'} {graphs[name][0].relative_to(source)} {why}")
    print(f"{len(graphs)} graphs, {sum(map(bool, wrong.values()))} wrong")
    return 1 if not graphs or any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

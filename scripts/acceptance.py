"""Serves every graph and every configuration of an OVMS checkout, and compares each with its expected outcome.

    python -m scripts.acceptance OVMS_SRC [FOLDER]

`acceptance_outcomes.py` says of every servable of each of the checkout's configurations, and of each of its
graphs, either which check its answers pass or what the server says of it. A file of either side without its row on
the other is a fault too, so that the list cannot shrink. In a copy of the checkout the directories of OVMS's
container are replaced, and small models laid where large ones are expected; nothing else changes. A server per
directory, or of those below FOLDER, reads one configuration after the other. Exit code 1 if an outcome differs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openvino as ov
from openvino import opset15 as op

from scripts.acceptance_checks import CHECKS, outcome
from scripts.acceptance_outcomes import CONFIGURATIONS, GRAPHS
from tests.conftest import ROOT, start_process
from tests.encoders import MINILM, tiny
from tests.inference.conftest import Site
from tests.ports import free_port
from tests.speech import tiny_whisper
from tests.voices import tiny_voice

PARTS = ("src/test", "src/custom_nodes", "demos")
COPIED = {".pbtxt", ".json", ".py", ".xml", ".bin", ".pb", ".tflite"}
WORKSPACES = {"sample_data": ".."}  # what a demo mounts, seen from its files, if not their folder
KEYS = re.compile(r'"(model_config_list|mediapipe_config_list|pipeline_config_list|monitoring)"')
SERVED = "acceptance.json"  # what the server of a directory reads
EMPTY: dict[str, Any] = {"model_config_list": []}
# Of the graphs whose models no configuration of theirs serves.
MODELS = {
    "dummy": "src/test/dummy",
    "add": "src/test/add_two_inputs_model",
    "scalar": "src/test/scalar",
    "resnet": "models/resnet-50-tf",
    "resnet50-binary-0001": "models/resnet-50-tf",
}
CLASSIFIERS = (
    "models/resnet-50-tf",
    "demos/mediapipe/image_classification/resnetMediapipe/model",
    "demos/benchmark/python/resnet50-binary-0001",
)


def files(source: Path) -> tuple[list[str], list[str]]:
    """Return the checkout's configurations and graphs, relative to it."""
    texts = [path for part in PARTS for path in sorted((source / part).rglob("*.json"))]
    configurations = [path for path in texts if KEYS.search(path.read_text())]
    graphs = [path for part in PARTS for path in sorted((source / part).rglob("*.pbtxt"))]
    return [str(p.relative_to(source)) for p in configurations], [str(p.relative_to(source)) for p in graphs]


def lay(source: Path, target: Path) -> None:
    """Copy what is needed of the checkout, with its own place for that of OVMS's container, and lay models."""
    for part in PARTS:
        shutil.copytree(
            source / part,
            target / part,
            ignore=lambda folder, names: [
                name for name in names if (Path(folder) / name).is_file() and Path(name).suffix not in COPIED
            ],
        )
    for path in [*target.rglob("*.pbtxt"), *target.rglob("*.json")]:
        text = path.read_text()
        path.write_text(
            text.replace('"/ovms/', f'"{target}/')
            .replace('"/workspace/', f'"{path.parent / WORKSPACES.get(path.parent.name, "")}/')
            .replace('"/models/', f'"{target}/models/')
        )
    models = target / "src/test/llm_testing"
    for name in ("HuggingFaceTB/SmolLM2-360M-Instruct", "facebook/opt-125m", "thenlper/gte-small/ov"):
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).symlink_to(MINILM if "gte" in name else ROOT / "models/smollm2")
    tiny("bert", models / "BAAI/bge-reranker-base/ov")
    tiny_whisper(models / "openai/whisper-tiny")
    tiny_voice(models / "hexgrad/Kokoro-82M")
    vision = models / "OpenVINO/InternVL2-1B-int4-ov"
    subprocess.run([sys.executable, "-m", "scripts.vision_model", str(vision)], cwd=ROOT, check=True)
    for name in CLASSIFIERS:
        write_classifier(target / name / "1")
    demo = target / "demos/continuous_batching"
    for folder in (demo, demo / "Meta-Llama-3-8B-Instruct"):
        folder.mkdir(exist_ok=True)
        for file in (ROOT / "models/smollm2").iterdir():
            if file.name != "graph.pbtxt" and not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)
    shutil.copy(demo / "graph.pbtxt", demo / "Meta-Llama-3-8B-Instruct")
    shutil.copytree(target / "src/test/dummy", target / "demos/dummy")
    together = target / "demos/mediapipe/multi_model_graph/dummyAdd"
    for name in ("dummy", "add_two_inputs_model"):
        shutil.copytree(target / "src/test" / name, together / name)


def write_classifier(folder: Path) -> None:
    """Write a model with the ends of the demos' ResNet: 0, an image [1,3,4,4], and 1463, twice the sums of its channels."""
    image = op.parameter([1, 3, 4, 4], np.float32, name="0")
    image.output(0).get_tensor().set_names({"0"})
    classes = op.multiply(op.reduce_sum(image, np.array([2, 3])), np.float32(2))
    classes.output(0).get_tensor().set_names({"1463"})
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(ov.Model([classes], [image], "resnet"), folder / "model.xml", compress_to_fp16=False)


def of_graphs(root: Path, graphs: list[str]) -> dict[str, Any]:
    """Return a configuration of ours that serves the graphs of a directory, each by the name of its file."""
    return {
        "model_config_list": [
            {"config": {"name": name, "base_path": str(root / path)}} for name, path in MODELS.items()
        ],
        "mediapipe_config_list": [
            {"name": Path(graph).stem, "base_path": ".", "graph_path": Path(graph).name} for graph in graphs
        ],
    }


def read(site: Site, folder: Path, configuration: str) -> dict[str, tuple[str, str]]:
    """Have the server read a configuration; return state and message of each servable, "" for all of them."""
    for text in (json.dumps(EMPTY), configuration):  # so that nothing of the last one is still served
        (folder / SERVED).write_text(text)
        answer = httpx.post(f"{site.url}/v1/config/reload", timeout=600)
    states = httpx.get(f"{site.url}/v1/config")
    if wrong := states.headers.get("x-ovserve-configuration-error"):
        return {"": ("REFUSED", wrong)}
    if answer.status_code not in (200, 201, 412):
        return {"": ("REFUSED", answer.text)}
    found = {}
    for name, status in states.json().items():
        version = status["model_version_status"][-1]
        found[name] = version["state"], version["status"]["error_message"]
    gone = (("UNLOADING", "OK"), ("END", "OK"))  # of the last configuration
    return {name: one for name, one in found.items() if one not in gone}


def judge(
    site: Site, states: dict[str, tuple[str, str]], expected: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each servable with what is wrong with it; "" if nothing is."""
    for name in sorted({*states, *expected}):
        state, message = states.get(name, ("", "is not listed"))
        wanted = expected.get(name)
        if wanted is None:
            yield name, f"has no expected outcome; it is {state} {message}"
        elif wanted in CHECKS:
            yield name, outcome(CHECKS[wanted], site, name) if state == "AVAILABLE" else f"{state} {message}"
        else:
            right = state != "AVAILABLE" and wanted in message
            yield name, "" if right else f"{state} {message}, instead of {wanted!r}"


def serve(
    root: Path, folder: str, configurations: list[str], graphs: list[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield file, servable, and what is wrong with it, of what is in a directory."""
    home = root / folder
    (home / SERVED).write_text(json.dumps(EMPTY))
    port = free_port()
    server = start_process(
        "--config_path", str(home / SERVED), "--grpc_port", str(port), "--file_system_poll_wait_seconds", "0"
    )
    site = Site(server, home, f"127.0.0.1:{port}")
    try:
        for name in configurations:
            states = read(site, home, (root / name).read_text())
            for servable, wrong in judge(site, states, CONFIGURATIONS.get(name, {})):
                yield name, servable, wrong
        if graphs:
            states = read(site, home, json.dumps(of_graphs(root, graphs)))
            expected = {Path(graph).stem: GRAPHS[graph] for graph in graphs if graph in GRAPHS}
            ours = {name: state for name, state in states.items() if f"{folder}/{name}.pbtxt" in graphs}
            for servable, wrong in judge(site, ours, expected):
                yield f"{folder}/{servable}.pbtxt", "", wrong
    finally:
        server.stop()


def main(source: Path, only: str = "") -> int:
    configurations, graphs = files(source)
    wrong = [
        f"{name}: {'no expected outcome' if name in {*configurations, *graphs} else 'not in the checkout'}"
        for name in sorted({*configurations, *graphs} ^ {*CONFIGURATIONS, *GRAPHS})
    ]
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "ovms"
        lay(source, root)
        folders = sorted({str(Path(name).parent) for name in (*configurations, *graphs)})
        for folder in folders:
            if not folder.startswith(only):
                continue
            here = [[n for n in names if str(Path(n).parent) == folder] for names in (configurations, graphs)]
            for name, servable, fault in serve(root, folder, *here):
                count += 1
                line = f"{'WRONG' if fault else 'ok'}  {name} {servable} {fault}".replace(str(root), "/ovms")
                print(line, flush=True)
                wrong += [line] if fault else []
    print("\n".join(["", *wrong]) if wrong else "")
    print(f"{len(graphs)} graphs, {len(configurations)} configurations, {count} outcomes, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:]))

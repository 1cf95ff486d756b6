"""Graphs with session and inference nodes, reached over KServe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton_grpc

from tests.inference.conftest import Site, start_site
from tests.inference.graphs import GRAPHS, WRONG, maps
from tests.inference.graphs import graph as graph_of
from tests.inference.graphs import inference as inference_node
from tests.inference.graphs import session as session_node
from tests.inference.test_plain_models import tensor

ONES = [1.0] * 10


@pytest.fixture(scope="module")
def graphs(plain_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The models are in the graphs' subconfig and in the main file; `moving` gets a second version."""
    root = tmp_path_factory.mktemp("graphs")
    os.symlink(plain_models, root / "models")
    shutil.copytree(plain_models / "dummy/1", root / "moving/1")
    names = ("dummy", "add", "scalar", "dummyUppercase", "passthrough_string")
    entries: list[dict[str, Any]] = [{"name": name, "base_path": f"models/{name}"} for name in names]
    entries += [{"name": "moving"}, {"name": "broken", "base_path": "models/dummy", "shape": {"z": "(1)"}}]
    late = one_of("broken")
    for name, text in [
        *GRAPHS.items(),
        *((n, t) for n, (t, _) in WRONG.items()),
        ("late", late),
        ("follows", one_of("moving")),
    ]:
        (root / name).mkdir()
        (root / name / "graph.pbtxt").write_text(text)
        entries.append({"name": name})
    (root / "vectors/subconfig.json").write_text(
        '{"model_config_list": [{"config": {"name": "two", "base_path": "../models/two"}},'
        ' {"config": {"name": "add", "base_path": "nowhere"}}]}'
    )
    made = start_site(root, entries, "--file_system_poll_wait_seconds", "0.2")
    yield made
    made.server.stop()


def one_of(model: str) -> str:
    node = inference_node(["OVTENSOR:in"], ["OVTENSOR:out"], maps({"OVTENSOR": "b"}, {"OVTENSOR": "a"}))
    return graph_of(["OVTENSOR:in"], ["OVTENSOR:out"], session_node(model, version=""), node)


def floats(name: str, values: list[float] = ONES, shape: tuple[int, ...] = (1, 10)) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": "FP32", "data": values}


def outputs(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {o["name"]: o["data"] for o in answer.json()["outputs"]}


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_every_wiring_computes(graphs: Site, name: str) -> None:
    meta = httpx.get(f"{graphs.url}/v2/models/{name}").json()
    two = [2.0] * 10
    if name == "strings":
        text = {"name": "in", "shape": [2], "datatype": "BYTES", "data": ["a", "ż"]}
        assert outputs(graphs.infer(name, text)) == {"out": ["a", "ż"]}
        return
    if name == "copy":
        assert outputs(graphs.infer(name, floats("in", [3.5], ()))) == {"out": [3.5]}
        assert meta["inputs"] == [{"name": "in", "datatype": "FP32", "shape": []}]
        return
    into = [i["name"] for i in meta["inputs"]]
    found = outputs(graphs.infer(name, *(floats(i, two if i == "in2" else ONES) for i in into)))
    wanted: dict[str, Any] = {o["name"]: two for o in meta["outputs"]}
    wanted |= {"sum": {"out": [3.0] * 10}, "two_models": {"out": [4.0] * 10}, "vectors": {"out": two}}.get(
        name, {}
    )
    assert found == wanted
    if name != "passed":
        known = [{"name": i, "datatype": "FP32", "shape": [-1 if name == "vectors" else 1, 10]} for i in into]
        assert meta["inputs"] == known


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_is_wrong_with_a_graph_is_said_at_load(graphs: Site, name: str) -> None:
    ((state, why),) = graphs.states(name).values()
    assert state == "LOADING"
    assert WRONG[name][1] in why, why
    assert "graph.pbtxt:" in why


def test_wrong_requests_and_models_that_do_not_answer(graphs: Site) -> None:
    wrong = graphs.infer("dummy_ovtensor", floats("in", [1.0] * 20, (2, 10)))
    assert (wrong.status_code, "'b': expected FP32 [1,10], got FP32 [2,10]" in wrong.json()["error"]) == (
        400,
        True,
    )
    assert graphs.infer("sum", floats("in1")).status_code == 400
    late = graphs.infer("late", floats("in"))
    assert (late.status_code, "model 'broken' is not loaded" in late.json()["error"]) == (503, True)


def test_a_graph_follows_its_model_to_new_versions(graphs: Site, plain_models: Path) -> None:
    assert outputs(graphs.infer("follows", floats("in"))) == {"out": [2.0] * 10}
    shutil.copytree(plain_models / "dummy/1", graphs.root / "moving/2")
    from tests.inference.test_versions import until_states

    until_states(graphs, "moving", {"1": "END", "2": "AVAILABLE"})
    assert outputs(graphs.infer("follows", floats("in"))) == {"out": [2.0] * 10}
    assert graphs.states("follows") == {"1": ("AVAILABLE", "OK")}


def test_many_requests_of_one_stream(graphs: Site) -> None:
    import queue

    import numpy as np

    found: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(graphs.grpc) as client:
        client.start_stream(lambda result, error: found.put((result, error)))
        for n in range(20):
            array = np.full((1, 10), n, np.float32)
            client.async_stream_infer(
                "two_models", [tensor(triton_grpc, i, array, "FP32") for i in ("in1", "in2")]
            )
        got = [found.get(timeout=230) for _ in range(20)]
        client.stop_stream()
    assert [(float(r.as_numpy("out")[0, 0]), e) for r, e in got] == [(2.0 * n + 1, None) for n in range(20)]

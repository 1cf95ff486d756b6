"""Memory after inputs of many shapes: the runtime keeps kernels for each, and what it keeps is bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovserve.engine.host.cpu import CACHE, PER_DEVICE, RUNTIME_CACHE_KERNELS, device_properties
from ovserve.kinds.tensors.spec import TensorSpec
from ovserve.kinds.tensors.worker.model import Model
from tests.encoders import tiny

# It prints the private memory in MB before and after NEW shapes that did not occur before. The first ones fill
# what is bounded, and the largest one comes first of all, so that its buffers are there.
FIRST, NEW = 400, 300
CHILD = f"""
import json, sys
import numpy as np
from pathlib import Path
path, kind, properties = sys.argv[1:]

def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024

if kind == "plain":
    from ovserve.kinds.tensors.worker.model import Model
    from ovserve.kinds.tensors.spec import TensorSpec
    model = Model(TensorSpec(path, properties=properties))
    request = model.compile().create_infer_request()
    shapes = [(1, length) for length in range(1, {FIRST + NEW} + 1)]
    def run(rows, length):
        request.infer({{0: np.zeros((rows, length, 64), np.float32)}})
else:
    from ovserve.kinds.encoders.worker import model as models
    from ovserve.engine.host.cpu import properties_of
    own = properties_of(properties, "CPU")
    read = models.pool(models.read(Path(path)), "MEAN", True)
    compiled = models.Compiled(read, "CPU", {{"NUM_STREAMS": 1, **own}}, 1)
    shapes = [(rows, length) for rows in range(1, 15) for length in range(1, 51)]
    def run(rows, length):
        compiled.infer(0, [np.full(length, 5, np.int64)] * rows, 0)
shapes = [shapes[-1], *np.random.default_rng(1).permutation(shapes[:-1]).tolist()]
for shape in shapes[:{FIRST}]:
    run(*shape)
before = private()
for shape in shapes[{FIRST}:]:
    run(*shape)
print(json.dumps(private() - before))
"""
LEAST_UNBOUNDED = 10  # MB


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    rows = ops.parameter([1, -1, 64], np.float32, name="rows")
    x = rows
    for sizes in ((64, 96), (96, 80), (80, 112), (112, 64)):
        x = ops.softmax(ops.matmul(x, ops.constant(np.full(sizes, 0.01, np.float32)), False, False), -1)
    place = tmp_path_factory.mktemp("models")
    ov.save_model(ov.Model([x], [rows], "rows"), place / "model.xml")
    return {"plain": place, "encoder": tiny("mpnet", place / "mpnet")}


def growth(path: Path, kind: str, **properties: object) -> float:
    command = [sys.executable, "-c", CHILD, str(path), kind, json.dumps(properties)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("kind", ["plain", "encoder"])
def test_new_shapes_do_not_make_an_engine_grow(models: dict[str, Path], kind: str) -> None:
    bounded = growth(models[kind], kind)
    unbounded = growth(models[kind], kind, **{CACHE: 5000})  # OpenVINO's default; the operator's value wins
    assert unbounded > LEAST_UNBOUNDED, "the measure sees what the runtime keeps"
    assert bounded < unbounded / 2


def test_the_bound_is_for_the_cpu_alone_and_gives_way_to_the_operators() -> None:
    assert device_properties("{}", "CPU") == {CACHE: RUNTIME_CACHE_KERNELS}
    assert device_properties(json.dumps({CACHE: 9}), "CPU") == {CACHE: 9}
    given = {PER_DEVICE: {"CPU": {CACHE: 9}}}
    for device in ("CPU", "AUTO", "HETERO:GPU,CPU"):
        assert device_properties(json.dumps(given), device) == given
    own = device_properties(json.dumps({PER_DEVICE: {"CPU": {"X": 1}, "GPU": {"Y": 2}}}), "AUTO:GPU,CPU(2)")
    assert own == {PER_DEVICE: {"CPU": {"X": 1, CACHE: RUNTIME_CACHE_KERNELS}, "GPU": {"Y": 2}}}
    for device in ("GPU", "NPU", "AUTO:GPU,NPU"):
        assert device_properties("", device) == {}
    assert device_properties("", "CPU", "GPU") == {}, "all devices get the same properties"


@pytest.mark.parametrize("device", ["CPU", "AUTO", "AUTO:CPU", "HETERO:CPU"])
def test_devices_take_the_bound(models: dict[str, Path], device: str) -> None:
    Model(TensorSpec(str(models["plain"]), device=device)).compile()

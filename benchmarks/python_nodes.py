"""Calls of a Python node against the plain inference path: a handler and a model, each adding 1 to its input.

    python -m benchmarks.python_nodes [--seconds 3] [--rounds 3] [--clients 1,16] [--wires http,grpc]

`python` is a graph of one Python node, `graph` one of a session and an inference node, `plain` the model
without a graph. All run alternately in each round, with 10 floats and with 1 MB. The client is that of
benchmarks/inference.py. It prints calls per second, the median of the rounds, and the CPU milliseconds of server
and engines per call.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import openvino as ov
from openvino import opset15 as op

from benchmarks.inference import WARM, child, cpu_of
from tests.inference.conftest import Site, start_site
from tests.inference.graphs import graph, inference, maps, session
from tests.inference.python_graphs import one, write

HANDLER = """
    import numpy as np
    from pyovms import Tensor

    class OvmsPythonModel:
        def execute(self, inputs):
            return [Tensor("output", np.array(inputs[0]) + 1)]
"""
SIZES = {"10 floats": (1, 10), "1 MB": (1, 262_144)}
SIDES = ("python", "graph", "plain")


def write_model(directory: Path) -> None:
    x = op.parameter(ov.PartialShape([1, -1]), np.float32, name="x")
    x.output(0).get_tensor().set_names({"x"})
    y = op.add(x, op.constant(np.float32(1)))
    y.output(0).get_tensor().set_names({"y"})
    directory.mkdir(parents=True)
    ov.save_model(ov.Model([y], [x], "plain"), directory / "model.xml", compress_to_fp16=False)


def site(root: Path) -> Site:
    write_model(root / "plain/1")
    # The client's tensor is called x.
    write(root / "python", one().replace(":input", ":x"), handler=HANDLER)
    node = inference(["OVTENSOR:x"], ["OVTENSOR:y"], maps({"OVTENSOR": "x"}, {"OVTENSOR": "y"}))
    write(root / "graph", graph(["OVTENSOR:x"], ["OVTENSOR:y"], session("plain", version=""), node))
    return start_site(root, [{"name": "plain", "base_path": "plain"}, {"name": "python"}, {"name": "graph"}])


def compare(made: Site, arguments: argparse.Namespace) -> None:
    pids = [made.server.process.pid, *made.server.children("ovserve.engine.worker.main")]
    addresses = {"http": made.host, "grpc": made.grpc}
    columns = "".join(f"{side:>9}/s {'CPU ms':>7}" for side in SIDES)
    print(f"{'size':10} {'clients':>7} {'wire':>5}{columns}")
    for size, shape in SIZES.items():
        for clients in arguments.clients.split(","):
            for wire in arguments.wires.split(","):
                found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
                for _ in range(arguments.rounds):
                    for side, rows in found.items():
                        before = cpu_of(pids)
                        sides = ",".join(map(str, shape))
                        rate, _ = child(
                            "--load", wire, addresses[wire], side, sides, clients, str(arguments.seconds)
                        )
                        cpu = (cpu_of(pids) - before) / (rate * (arguments.seconds + WARM)) * 1e3
                        rows.append((rate, cpu))
                medians = [[median(column) for column in zip(*rows, strict=True)] for rows in found.values()]
                cells = "".join(f"{rate:11.0f} {cpu:7.2f}" for rate, cpu in medians)
                print(f"{size:10} {clients:>7} {wire:>5}{cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--wires", default="http,grpc")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made = site(Path(scratch))
        try:
            compare(made, arguments)
        finally:
            made.server.stop()


if __name__ == "__main__":
    main()

"""Plain models with dynamic inputs against the same compiled for one shape: speed, memory, and differences.

    python -m benchmarks.fixed_shapes [--rounds 5] [--seconds 1] [--models classifier,detector,recogniser]

Both are driven by an AsyncInferQueue that is always full, in turns, in one process. The table has the CPU time
of an inference in ms, the median of the rounds' ratios, and the inferences per second. The last columns are
the growth of the process by the second compilation, and the largest difference of an output, relative to its
largest value.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import openvino as ov

ROOT = Path(__file__).parents[1]
SHAPES = {"classifier": (1, 3, 48, 192), "detector": (1, 3, 320, 320), "recogniser": (1, 3, 48, 320)}
HINT = {"PERFORMANCE_HINT": "THROUGHPUT"}


def run(queue: Any, given: Any, seconds: float) -> tuple[float, float]:
    """Return inferences per second, and milliseconds of CPU time of each."""
    began, busy, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        queue.start_async({0: given}, share_inputs=True)
        count += 1
    queue.wait_all()
    return count / (time.perf_counter() - began), (time.process_time() - busy) / count * 1e3


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def measure(name: str, batch: int, rounds: int, seconds: float) -> None:
    core = ov.Core()
    model = core.read_model(ROOT / f"models/ocr/{name}/1/model.onnx")
    shape = (batch, *SHAPES[name][1:])
    given = np.random.default_rng(0).random(shape, np.float32)
    own = core.compile_model(model, "CPU", HINT)
    expected = [made.copy() for made in own(given).values()]
    queues = [ov.AsyncInferQueue(own)]
    run(queues[0], given, seconds)
    before = resident()
    fixed = model.clone()
    fixed.reshape(list(shape))
    compiled = core.compile_model(fixed, "CPU", HINT)
    pairs = zip(expected, compiled(given).values(), strict=True)
    most = max(float(np.abs(one - other).max() / np.abs(one).max()) for one, other in pairs)
    queues.append(ov.AsyncInferQueue(compiled))
    run(queues[1], given, seconds)
    grown, found = resident() - before, []
    for turn in range(rounds):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        by_side = {side: run(queues[side], given, seconds) for side in order}
        found.append((*by_side[0], *by_side[1], by_side[1][1] / by_side[0][1]))
    rate, ms, fixed_rate, fixed_ms, ratio = map(median, zip(*found, strict=True))
    print(
        f"| {name} | {batch} | {ms:.2f} | {fixed_ms:.2f} | {ratio:.2f} | {rate * batch:.0f} | "
        f"{fixed_rate * batch:.0f} | {grown:.0f} | {most:.1e} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--batches", default="1,8")
    arguments = parser.parse_args()
    print("| model | batch | ms | fixed | ratio | per second | fixed | more MB | difference |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            measure(name, batch, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()

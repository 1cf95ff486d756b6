"""Compares forms of a model by the time of a step with few tokens, without an engine around it.

    python -m benchmarks.few_tokens NAME=MODEL.xml[,fixed][,PROPERTY=VALUE,...] ... [--tokens 1,8,32]
        [--before 150] [--rounds 8] [--prompt | --whole 1024]

Each side is the model with paged attention, as the paged engine compiles it; OpenVINO's attention computes with
the properties `KV_CACHE_PRECISION=bf16,INFERENCE_PRECISION_HINT=bf16`. With `fixed`, each count of decodes has
the form with fixed shapes that the engine compiles on demand. A step computes one token of each
of as many sequences, with `--prompt` as many tokens of one, after `--before` tokens; with `--whole` each cell is
a prompt of so many tokens, in steps of `--tokens`. Sides take turns every four steps, or every prompt; the table
has medians in milliseconds and the speed against the first side. The first of all to run gets slower clocks: name one twice.

The bf16 kernels of OpenVINO's CPU plugin are slower than its f32 ones for few rows; this shows it with the
files of `ovserve pull smollm2 --weight-format fp16`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import openvino

from ovserve.kinds.text.worker.paged.model import PagedModel
from ovserve.kinds.text.worker.paged.runner import Runner
from ovserve.kinds.text.worker.paged.scheduler import blocks_of

STEPS = 4
LATENCY = {"PERFORMANCE_HINT": "LATENCY"}


def side(told: str, blocks: int, decodes: Iterable[int] = ()) -> tuple[str, Mapping[int, Runner]]:
    """Return a name, and the runners by tokens."""
    name, _, rest = told.partition("=")
    path, *given = rest.split(",")
    properties = LATENCY | dict(text.split("=", 1) for text in given if text != "fixed")
    model = PagedModel(Path(path), "CPU", properties)
    model.compile()
    model.allocate(blocks)
    model.start_forms()
    model.wait()
    for tokens in decodes if "fixed" in given else ():
        model.compile_decodes(tokens)
    return name, defaultdict(lambda: model.runner, model.decode_forms)


def bind(runner: Runner, sequences: int, tokens: int, before: int) -> None:
    """Bind the inputs of a step with `tokens` of each of `sequences`."""
    begins, blocks = np.arange(sequences + 1, dtype=np.int32), blocks_of(before + tokens)
    runner.bind("input_ids", np.full(sequences * tokens, 100, np.int64))
    runner.bind("position_ids", np.tile(np.arange(before, before + tokens), sequences))
    runner.bind("past_lens", np.full(sequences, before, np.int32))
    runner.bind("subsequence_begins", tokens * begins)
    runner.bind("block_indices", np.arange(blocks * sequences, dtype=np.int32))
    runner.bind("block_indices_begins", blocks * begins)
    runner.bind("rows", tokens * begins[1:] - 1)


def milliseconds(runner: Runner, longest: int) -> float:
    runner.run(longest)
    began = time.perf_counter()
    for _ in range(STEPS):
        runner.run(longest)
    return (time.perf_counter() - began) / STEPS * 1e3


def whole_prompt(runner: Runner, whole: int, step: int) -> float:
    """Return the milliseconds of a prompt of `whole` tokens in steps of `step`."""
    began = time.perf_counter()
    for at in range(0, whole, step):
        tokens = min(step, whole - at)
        bind(runner, 1, tokens, at)
        runner.run(at + tokens)
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sides", nargs="+")
    parser.add_argument("--tokens", default="1,4,8,16,32,64")
    parser.add_argument("--before", type=int, default=150, help="tokens of each sequence")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--prompt", action="store_true", help="--tokens are those of one sequence")
    parser.add_argument("--whole", type=int, default=0, help="tokens of a prompt in steps of --tokens")
    told = parser.parse_args()
    counts = [int(text) for text in told.tokens.split(",")]
    of_one = told.prompt or told.whole
    shapes = [(1, count) if of_one else (count, 1) for count in counts]  # sequences, tokens of each
    most = max(sequences * blocks_of((told.whole or told.before) + tokens) for sequences, tokens in shapes)
    sides = [side(text, most, () if of_one else counts) for text in told.sides]
    print(f"OpenVINO {openvino.get_version()}\n\n| form |" + "".join(f" {count} |" for count in counts))
    print("|---|" + "--:|" * len(counts))
    rows: list[list[float]] = [[] for _ in sides]
    if told.whole:  # the sizes take turns too
        turns = [
            [[whole_prompt(runners[0], told.whole, count) for count in counts] for _, runners in sides]
            for _ in range(told.rounds)
        ]
        rows = [[median(cell) for cell in zip(*cells, strict=True)] for cells in zip(*turns, strict=True)]
        shapes = []
    for sequences, tokens in shapes:
        times: list[list[float]] = [[] for _ in sides]
        runners = [runners[sequences * tokens] for _, runners in sides]
        for runner in runners:
            bind(runner, sequences, tokens, told.before)
        for _ in range(told.rounds):
            for runner, measured in zip(runners, times, strict=True):
                measured.append(milliseconds(runner, told.before + tokens))
        for row, measured in zip(rows, times, strict=True):
            row.append(median(measured))
    for (name, _), row in zip(sides, rows, strict=True):
        cells = [f"{took:.1f} ({first / took:.2f})" for took, first in zip(row, rows[0], strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

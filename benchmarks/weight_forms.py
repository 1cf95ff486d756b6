"""Compares forms of a model's weights in the paged engine: perplexity, and CPU time of steps, alternating.

    python -m benchmarks.weight_forms DIRECTORY... [--activation_groups 32,64,128] [--tokens 1500]

With `--activation_groups`, each directory is compiled with each of these sizes of groups of activations: 0 lets the
engine choose, which is kernels of its own where it can, and any other size is for OpenVINO's kernels. CPU time and not seconds, so that other work on the machine counts little. Directories have a model in OpenVINO IR form;
the tokenizer is the first one's. The text is LICENSE and docs/operations.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as ov_genai
from numpy.typing import NDArray

from ovserve.kinds.text.worker.paged.model import ACTIVATION_GROUP, BLOCK_TOKENS, PagedModel

ROOT = Path(__file__).parents[1]
WINDOW = 250
BLOCKS = 400
ROUNDS = 10
STEPS = {f"{tokens} tokens of 1 stream": (1, tokens, 128) for tokens in (1, 2, 4, 8)} | {
    f"{streams} streams": (streams, 1, 128) for streams in (4, 8)
}
STEPS["prompt of 256"] = (1, 256, 0)
Ids = NDArray[np.int64]


def load(directory: Path, group: int | None) -> PagedModel:
    properties: dict[str, Any] = {"KV_CACHE_PRECISION": "bf16"}
    if group:
        properties[ACTIVATION_GROUP] = group
    model = PagedModel(directory / "openvino_model.xml", "CPU", properties)
    model.compile()
    model.allocate(BLOCKS)
    return model


def step(model: PagedModel, ids: Ids, streams: int, tokens: int, past: int, rows: Ids) -> NDArray[np.float32]:
    """Compute `tokens` of each stream after `past`; return logits of `rows`."""
    blocks = -(-(past + tokens) // BLOCK_TOKENS)
    runner, ends = model.runner, np.arange(streams + 1, dtype=np.int32)
    runner.bind("input_ids", ids[: streams * tokens])
    runner.bind("position_ids", np.tile(np.arange(past, past + tokens), streams))
    runner.bind("past_lens", np.full(streams, past, np.int32))
    runner.bind("subsequence_begins", ends * tokens)
    runner.bind("block_indices", np.arange(streams * blocks, dtype=np.int32))
    runner.bind("block_indices_begins", ends * blocks)
    runner.bind("rows", rows.astype(np.int32))
    return runner.run(past + tokens)


def perplexity(model: PagedModel, ids: Ids) -> float:
    losses: list[float] = []
    for at in range(0, len(ids) - 1, WINDOW):
        part, following = ids[at : at + WINDOW], ids[at + 1 : at + 1 + WINDOW]
        logits = step(model, part, 1, len(part), 0, np.arange(len(following))).astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        chosen = logits[np.arange(len(following)), following]
        losses += (np.log(np.exp(logits).sum(1)) - chosen).tolist()
    return float(np.exp(np.mean(losses)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--activation_groups", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--tokens", type=int, default=1_500)
    chosen = parser.parse_args()
    tokenizer = ov_genai.Tokenizer(str(chosen.directories[0]))
    text = "".join((ROOT / name).read_text() for name in ("LICENSE", "docs/operations.md"))
    ids = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0][: chosen.tokens].astype(np.int64)
    models = []
    for directory in chosen.directories:
        for group in chosen.activation_groups or [None]:
            models.append(load(directory, group))
            of_group = f", OpenVINO's kernels, activations by {group}" if group else ""
            print(f"{directory}{of_group}: perplexity {perplexity(models[-1], ids):.3f}", flush=True)
    for name, (streams, tokens, past) in STEPS.items():
        rows = np.arange(tokens - 1, streams * tokens, tokens)
        seconds: list[list[tuple[float, float]]] = [[] for _ in models]
        for _ in range(ROUNDS):
            for model, taken in zip(models, seconds, strict=True):
                began, cpu = time.perf_counter(), time.process_time()
                step(model, ids, streams, tokens, past, rows)
                taken.append((time.process_time() - cpu, time.perf_counter() - began))
        median, least = (
            ", ".join(f"{choose(times[at] for times in taken[2:]) * 1e3:.2f}" for taken in seconds)
            for at, choose in ((0, statistics.median), (1, min))
        )
        print(f"{name}: {median} ms of CPU time, {least} ms at least")


if __name__ == "__main__":
    main()

"""Says how forms of a model differ in what they write: perplexity, and greedy text next to the first one's.

    python -m benchmarks.quality NAME=DIRECTORY... [--tokens 1500] [--text FILE]

Directories have a model in OpenVINO IR form. The text is CONTRIBUTING.md and docs/ of this repository, which
no model can have read. OPTION=VALUE after a comma is a property of the plugin, such as KV_CACHE_PRECISION=f16.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
WINDOW, CHUNK = 512, 32  # tokens
PROMPTS = (
    "Write a long story about a lighthouse and the people who keep it.",
    "def quicksort(a):",
    "Explain to a child why the sky is blue.",
    "The three largest cities of France are",
)
ANSWER = 96  # tokens


def perplexity(directory: Path, text: str, tokens: int) -> float:
    """Return the perplexity of the first `tokens` tokens of a text, in windows of 512 tokens."""
    return float(np.exp(losses(directory, text, tokens, {}).mean()))


def losses(directory: Path, text: str, tokens: int, properties: Mapping[str, object]) -> NDArray[np.float64]:
    """Return the negative log-probability of each token of a text but the first.

    A window is read in chunks of 32 tokens, so attention reads what the KV cache holds.
    """
    ids = np.array(ov_genai.Tokenizer(str(directory)).encode(text).input_ids.data[0][:tokens], np.int64)
    network = ov.Core().compile_model(directory / "openvino_model.xml", "CPU", dict(properties))
    request = network.create_infer_request()
    made: list[float] = []
    for at in range(0, len(ids) - 1, CHUNK):
        if not at % WINDOW:
            request.reset_state()
        chunk, targets = ids[at : at + CHUNK], ids[at + 1 : at + CHUNK + 1]
        logits = np.asarray(request.infer(_inputs(chunk, at % WINDOW))[0], np.float64)[0]
        top = logits.max(axis=1, keepdims=True)
        totals = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        made += (totals[: len(targets)] - logits[np.arange(len(targets)), targets]).tolist()
    return np.array(made)


def _inputs(chunk: Any, at: int) -> dict[str, Any]:
    return {
        "input_ids": chunk[None],
        "attention_mask": np.ones((1, at + len(chunk)), np.int64),
        "position_ids": np.arange(at, at + len(chunk))[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def greedy(directory: Path, properties: Mapping[str, object]) -> list[list[str]]:
    """Return the first tokens of answers, as text."""
    scheduling = ov_genai.SchedulerConfig()
    scheduling.cache_size = 1
    pipeline = ov_genai.ContinuousBatchingPipeline(str(directory), scheduling, "CPU", dict(properties))
    config = ov_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = ANSWER, True, False
    made = [pipeline.generate([prompt], [config])[0].m_generation_ids[0] for prompt in PROMPTS]
    tokenizer = pipeline.get_tokenizer()
    return [tokenizer.encode(text).input_ids.data[0].tolist() for text in made]


def same(one: list[Any], other: list[Any]) -> int:
    """Return how many tokens are equal before the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def change(first: NDArray[np.float64], made: NDArray[np.float64]) -> str:
    """Return the change of perplexity in percent, and its standard error from the differences per token."""
    differences = made - first
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{np.expm1(differences.mean()):+.2%} ± {error:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    parser.add_argument("form", nargs="+", metavar="NAME=DIRECTORY[,OPTION=VALUE]...")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--text", type=Path)
    chosen = parser.parse_args()
    files = (
        [chosen.text] if chosen.text else [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    )
    text = "\n".join(file.read_text("utf-8") for file in files)[: chosen.tokens * 8]
    print("| form | perplexity | change | equal tokens of greedy text |\n|---|--:|--:|---|")
    first: tuple[list[list[str]], NDArray[np.float64]] | None = None
    for told in chosen.form:
        name, _, rest = told.partition("=")
        path, *options = rest.split(",")
        properties = dict(option.split("=", 1) for option in options)
        made = greedy(Path(path), properties), losses(Path(path), text, chosen.tokens, properties)
        first = first or made
        equal = ", ".join(f"{same(a, b)}/{len(a)}" for a, b in zip(first[0], made[0], strict=True))
        print(
            f"| {name} | {np.exp(made[1].mean()):.3f} | {change(first[1], made[1])} | {equal} |",
            flush=True,
        )
    os._exit(0)  # native destructors may take long


if __name__ == "__main__":
    main()

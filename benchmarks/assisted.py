"""Measures the gain of prompt lookup and of a draft model on three kinds of prompts. `make bench-assisted`, 1 to 3 minutes.

    python -m benchmarks.assisted [--model FILE] [--draft DIRECTORY] [--rounds 4] [--tokens 64]

All ways of decoding stay loaded in one process and take turns, plain first in one round and last in the next,
so a busy machine hurts them alike; only ratios count. Answers are greedy and one at a time. Prompts are in
ChatML, which the default model and Qwen share. Prints a table for docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.protocol.specs import DraftSpec, TextSpec
from tests.engine.real import CHAT, Result, add, run

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

TEXT = """\
The harbour of Westport was built in three stages. The first stage, between 1871 and 1879, gave the town a
stone pier of two hundred metres and a lighthouse at its end. The second stage began in 1902, when the fishing
fleet had grown to ninety boats, and added an inner basin with a lock that keeps the water level at low tide.
The third stage was finished in 1958: a deep-water quay for ferries and small freighters on the northern side.
Today most of the ninety boats are gone. The inner basin is a marina, the lighthouse is a museum, and the
deep-water quay serves a ferry to the islands four times a day in summer and twice a day in winter. The town
council plans to rebuild the stone pier, which a storm damaged in January, at a cost of eleven million."""

CODE = """\
def moving_average(values, window):
    result = []
    total = 0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        if index >= window - 1:
            result.append(total / window)
    return result


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
"""

PROMPTS = {
    "summarise a given text": f"Summarise this text, keeping its words where you can:\n\n{TEXT}",
    "edit given code": "Rename the parameter `values` to `numbers` everywhere and give back all of the code:"
    f"\n\n```python\n{CODE}```",
    "free chat": "What would you pack for a week of walking in the mountains, and why?",
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assisted")
    parser.add_argument("--model", type=Path, default=MODEL, help="a .gguf file or a directory")
    parser.add_argument("--draft", type=Path, help="a directory in OpenVINO IR form; without it no draft")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, at most")
    return parser.parse_args()


def answer(engine: GenAIEngine, prompt: str, tokens: int) -> tuple[float, Result]:
    """Seconds per token behind the first, which is the prompt's; and the answer."""
    add(engine, 1, CHAT.format(prompt), max_tokens=tokens)
    engine.step()
    began = time.perf_counter()
    result = run(engine)[1]
    return (time.perf_counter() - began) / max(1, result.tokens - 1), result


def main() -> None:
    chosen = options()
    model = str(chosen.model)
    specs = {"plain": TextSpec(model), "prompt lookup": TextSpec(model, prompt_lookup=True)}
    if chosen.draft:
        specs["draft model"] = TextSpec(model, draft=DraftSpec(str(chosen.draft.resolve())))
    engines = {name: GenAIEngine(spec) for name, spec in specs.items()}
    for engine in engines.values():
        answer(engine, "Hello", 4)
    seconds: dict[tuple[str, str], list[float]] = {}
    last: dict[tuple[str, str], Result] = {}
    for turn in range(chosen.rounds):
        for kind, prompt in PROMPTS.items():
            for name in engines if turn % 2 == 0 else reversed(engines):
                took, last[kind, name] = answer(engines[name], prompt, chosen.tokens)
                seconds.setdefault((kind, name), []).append(took)
    print("| prompt | decoding | speed against plain | accepted of drafted |\n|---|---|---|---|")
    for kind in PROMPTS:
        for name in list(engines)[1:]:
            pairs = zip(seconds[kind, "plain"], seconds[kind, name], strict=True)
            result = last[kind, name]
            share = f"{result.accepted} of {result.drafted}"
            print(f"| {kind} | {name} | {statistics.median(a / b for a, b in pairs):.2f} | {share} |")


if __name__ == "__main__":
    main()

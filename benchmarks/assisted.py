"""Measures the gain of prompt lookup and of a draft model on three kinds of prompts. `make bench-assisted`, 1 to 3 minutes.

    python -m benchmarks.assisted [--model FILE] [--draft DIRECTORY] [--engine paged] [--rounds 4] [--tokens 64]
        [--streams 1,8,32] [--candidates 5]

The engine is the paged one for a directory, and OpenVINO GenAI's for a .gguf file, unless `--engine` chooses.

All ways of decoding stay loaded in one process and take turns, plain first in one round and last in the next,
so a busy machine hurts them alike; only ratios count. Answers are greedy. Prompts are in ChatML, which the
default model and Qwen share. Prints a table for benchmarks/measurements.md.

With several `--streams`, that many requests of one kind run at once. In the rows with edits and chats, plain
decoding has all in one pipeline. Each other mode has the edits in its own pipeline and the chats in the plain
one, as if requests were placed by kind. The memory of each pipeline goes to stderr.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ovserve.engine.protocol.messages import StepItem
from ovserve.engine.protocol.specs import DraftSpec, PagedTextSpec, TextSpec
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.paged import PagedEngine
from tests.engine.real import CHAT, add

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PLAIN, EDIT, CHATTING = "plain", "edit given code", "free chat"
ONE, HALF = "one edit, other chats", "half edits, half chats"
PROMPT_TOKENS = 400  # of a prompt, at most: so many per stream are read in the first step

Engines = dict[str, GenAIEngine | PagedEngine]
Load = tuple[str, str, int]  # decoding, prompt, requests

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
    EDIT: "Rename the parameter `values` to `numbers` everywhere and give back all of the code:"
    f"\n\n```python\n{CODE}```",
    CHATTING: "What would you pack for a week of walking in the mountains, and why?",
}
KINDS = (*PROMPTS, ONE, HALF)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assisted")
    parser.add_argument("--model", type=Path, default=MODEL, help="a .gguf file or a directory")
    parser.add_argument("--draft", type=Path, help="a directory in OpenVINO IR form; without it no draft")
    parser.add_argument("--engine", choices=("paged", "genai"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, at most")
    parser.add_argument("--streams", default="1", help="requests at once, such as 1,8,32")
    parser.add_argument("--candidates", type=int, default=5, help="num_assistant_tokens")
    return parser.parse_args()


@dataclass
class Answers:
    tokens: int = 0  # behind the first of each answer, which is the prompt's
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def per_token(self) -> float:
        return self.seconds / max(1, self.tokens)

    @property
    def per_step(self) -> float:
        return self.seconds / max(1, self.steps)


def answer(engines: Engines, loads: Sequence[Load], tokens: int, candidates: int) -> Answers:
    """Answer prompts in one engine or two, which take turns step by step."""
    number = 0
    for name, prompt, count in loads:
        drafting = {"num_assistant_tokens": 0 if name == PLAIN else candidates}
        for _ in range(count):
            number += 1
            add(engines[name], number, CHAT.format(prompt), max_tokens=tokens, **drafting)
    used = [engines[name] for name in dict.fromkeys(name for name, *_ in loads)]
    for engine in used:  # reads the prompts
        engine.step()
        engine.collect()
    made, began = Answers(), time.perf_counter()
    while any(engine.busy for engine in used):
        for engine in used:
            if not engine.busy:
                continue
            engine.step()
            made.steps += 1
            for item in engine.collect():
                assert isinstance(item, StepItem), item
                made.tokens += item.tokens
                made.drafted += item.drafted
                made.accepted += item.accepted
    made.seconds = time.perf_counter() - began
    return made


def loads(name: str, kind: str, streams: int) -> list[Load]:
    if kind in PROMPTS:
        return [(name, PROMPTS[kind], streams)]
    edits = 1 if kind == ONE else streams // 2
    return [(name, PROMPTS[EDIT], edits), (PLAIN, PROMPTS[CHATTING], streams - edits)]


def memory() -> float:
    """MB of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1e3


def main() -> None:
    chosen = options()
    model, streams = str(chosen.model), [int(n) for n in chosen.streams.split(",")]
    batched = max(256, PROMPT_TOKENS * max(streams))
    paged = chosen.engine == "paged" if chosen.engine else chosen.model.is_dir()
    spec_type = PagedTextSpec if paged else TextSpec
    specs = {
        PLAIN: spec_type(model, max_num_batched_tokens=batched),
        "prompt lookup": spec_type(model, max_num_batched_tokens=batched, prompt_lookup=True),
    }
    if chosen.draft:
        draft = DraftSpec(str(chosen.draft.resolve()))
        specs["draft model"] = spec_type(model, max_num_batched_tokens=batched, draft=draft)
    engines: Engines = {}
    for name, spec in specs.items():
        before = memory()
        engines[name] = PagedEngine(spec) if isinstance(spec, PagedTextSpec) else GenAIEngine(spec)
        answer(engines, [(name, "Hello", 1)], 4, chosen.candidates)
        print(f"{name}: {memory() - before:.0f} MB", file=sys.stderr)
    found: dict[tuple[str, int, str], list[Answers]] = {}
    for turn in range(chosen.rounds):
        for kind in KINDS:
            for n in streams:
                if kind not in PROMPTS and n == 1:
                    continue
                for name in engines if turn % 2 == 0 else reversed(engines):
                    made = answer(engines, loads(name, kind, n), chosen.tokens, chosen.candidates)
                    found.setdefault((kind, n, name), []).append(made)
                    print(f"{turn}: {kind}, {n}, {name}: {made}", file=sys.stderr)
    print("\n".join(table(found, streams, list(engines)[1:])))


def table(
    found: dict[tuple[str, int, str], list[Answers]], streams: list[int], modes: list[str]
) -> list[str]:
    """Speed against plain decoding, how many of the drafted tokens were accepted, and the time of a step."""
    rows = [
        "| prompt | decoding | " + " | ".join(map(str, streams)) + " |",
        "|---|---|" + "--:|" * len(streams),
    ]
    for kind in KINDS:
        for name in modes:
            cells = []
            for n in streams:
                made, plain = found.get((kind, n, name), []), found.get((kind, n, PLAIN), [])
                if not made:
                    cells.append("")
                    continue
                pairs = list(zip(plain, made, strict=True))
                ratios = sorted(a.per_token / b.per_token for a, b in pairs)
                longer = statistics.median(b.per_step / a.per_step for a, b in pairs)
                cells.append(
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}), "
                    f"{made[-1].accepted} of {made[-1].drafted}" + f", step {longer:.2f}" * (kind in PROMPTS)
                )
            if any(cells):
                rows.append(f"| {kind} | {name} | " + " | ".join(cells) + " |")
    return rows


if __name__ == "__main__":
    main()

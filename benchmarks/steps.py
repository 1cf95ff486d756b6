"""Shows where the bare engine's time goes: prompt steps and decoding steps apart, for several forms of a model.

    python -m benchmarks.steps NAME=PATH[,OPTION=VALUE]... ... [--rounds 3] [--streams 1,8,32,64] [--json FILE]

All contenders are loaded into one process and take turns, each beginning a round in turn; ratios are taken
round by round against the first. An OPTION in capitals is a property of the plugin, another one a field of
the library's SchedulerConfig. Prompts have 128 tokens of random ids, no two alike. Reported for each:

- prompt: milliseconds of a step over `max_num_batched_tokens` prompt tokens, without decoding
- B: milliseconds of a step in which B sequences get a token each, all prompts being read
- load B: tokens per second of B answers of 64 tokens, all asked for at once, their prompts included
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import openvino
import openvino_genai as ov_genai

PROMPT, ANSWER, DECODED = 128, 64, 16
PROMPT_STEPS = 4
FIRST_ID, LAST_ID = 1000, 40_000  # ordinary words of the default model


class Contender:
    def __init__(self, told: str) -> None:
        """`NAME=PATH,OPTION=VALUE,...`; raises RuntimeError with the library's reason."""
        self.name, _, rest = told.partition("=")
        path, *options = rest.split(",")
        config = ov_genai.SchedulerConfig()
        config.cache_size = 1
        config.enable_prefix_caching = False
        properties: dict[str, object] = {}
        for option in options:
            key, _, value = option.partition("=")
            read: object = json.loads(value) if value[:1].isdigit() or value in ("true", "false") else value
            if key.isupper():
                properties[key] = read
            else:
                setattr(config, key, read)
        self.batched = config.max_num_batched_tokens
        self.pipeline = ov_genai.ContinuousBatchingPipeline(path, config, "CPU", properties)
        self._random = random.Random(1)
        self._id = 0

    def _add(self, tokens: int) -> ov_genai.GenerationHandle:
        config = ov_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, PROMPT]))
        tensor.data[0] = self._random.choices(range(FIRST_ID, LAST_ID), k=PROMPT)
        self._id += 1
        return self.pipeline.add_request(self._id, tensor, config)

    def _steps(self) -> Iterator[float]:
        while self.pipeline.has_non_finished_requests():
            began = time.perf_counter()
            self.pipeline.step()
            yield time.perf_counter() - began

    def prompt_step(self) -> float:
        """Seconds."""
        handles = [self._add(1) for _ in range(PROMPT_STEPS * self.batched // PROMPT)]
        took = median(self._steps())
        del handles
        return took

    def decode_step(self, streams: int) -> float:
        """Seconds."""
        # Those that began first get tokens while other prompts are read; all must still be there after that.
        reading = 2 * math.ceil(streams * PROMPT / self.batched)
        handles = [self._add(reading + DECODED) for _ in range(streams)]
        took = median(list(self._steps())[reading : reading + DECODED])
        del handles
        return took

    def load(self, streams: int) -> float:
        """Tokens per second."""
        handles = [self._add(ANSWER) for _ in range(streams)]
        total = sum(self._steps())
        del handles
        return streams * ANSWER / total


def measure(contender: Contender, streams: list[int]) -> dict[str, float]:
    made = {"prompt": contender.prompt_step() * 1e3}
    made |= {str(n): contender.decode_step(n) * 1e3 for n in streams}
    return made | {f"load {n}": contender.load(n) for n in streams}


def table(rounds: dict[str, list[dict[str, float]]]) -> list[str]:
    """Medians; behind each the speed against the first contender's, 1.10 being a tenth faster."""
    (first, reference), *_ = rounds.items()
    columns = list(reference[0])
    rows = [
        "| engine | " + " | ".join(columns) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for name, made in rounds.items():
        cells = []
        for column in columns:
            ratios = [
                (a[column] / b[column]) ** (1 if column.startswith("load") else -1)
                for a, b in zip(made, reference, strict=True)
            ]
            against = "" if name == first else f" ({median(ratios):.2f})"
            cells.append(f"{median(r[column] for r in made):.1f}{against}")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps")
    parser.add_argument("contender", nargs="+", metavar="NAME=PATH[,OPTION=VALUE]...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--json", type=Path, help="write every round to this file")
    chosen = parser.parse_args()
    streams = [int(n) for n in chosen.streams.split(",")]
    contenders = []
    for told in chosen.contender:
        try:
            contenders.append(Contender(told))
        except RuntimeError as error:
            print(f"skipped: {told}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
    for contender in contenders:
        contender.decode_step(4)  # the first steps of an engine are slower
    rounds: dict[str, list[dict[str, float]]] = {c.name: [] for c in contenders}
    for number in range(chosen.rounds):
        at = number % len(contenders)
        for contender in contenders[at:] + contenders[:at]:
            rounds[contender.name].append(measure(contender, streams))
            print(f"round {number + 1}: {contender.name} {rounds[contender.name][-1]}", file=sys.stderr)
    if chosen.json:
        chosen.json.write_text(json.dumps(rounds, indent=1))
    print("\n".join(table(rounds)), flush=True)
    os._exit(0)  # native destructors may take long


if __name__ == "__main__":
    main()

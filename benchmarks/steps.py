"""Shows where the bare engine's time goes: prompt steps and decoding steps apart, for several forms of a model.

    python -m benchmarks.steps NAME=PATH[,OPTION=VALUE]... ... [--rounds 12] [--streams 1,8,32,64] [--json FILE]

Each contender is a process of its own. They take turns every few steps in the middle of their answers, so that
a slow minute of the machine hurts all alike; ratios are taken turn by turn against the first. In one process
the first contender came out 2 to 10 % slower than the same form behind it. A contender that is named twice
shows what the method cannot distinguish. An OPTION in capitals is a property of the plugin, another one a field
of the library's SchedulerConfig. Prompts are random ids, no two alike. Reported for each:

- prompt: milliseconds of a step over `max_num_batched_tokens` prompt tokens, without decoding
- B: milliseconds of a step in which B sequences get a token each, all prompts being read
- load B, with --load: tokens per second of B answers of 64 tokens, all asked for at once, prompts included
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import openvino
import openvino_genai as ov_genai

PROMPT, ANSWER = 128, 64
BLOCK = 4  # steps of a turn
PROMPT_STEPS = 2
FIRST_ID, LAST_ID = 1000, 40_000  # ordinary words of the default model
LOAD_ROUNDS = 3
ENDLESS = 100_000  # tokens of an answer that is dropped when it has been measured


class Contender:
    """An engine in its own process; its methods are called through `Side`."""

    def __init__(self, told: str) -> None:
        """`NAME=PATH,OPTION=VALUE,...`; raises RuntimeError with the library's reason."""
        path, *options = told.partition("=")[2].split(",")
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
        self._running: list[ov_genai.GenerationHandle] = []

    def _add(self, tokens: int, prompt: int = PROMPT) -> ov_genai.GenerationHandle:
        config = ov_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, prompt]))
        tensor.data[0] = self._random.choices(range(FIRST_ID, LAST_ID), k=prompt)
        self._id += 1
        return self.pipeline.add_request(self._id, tensor, config)

    def _steps(self) -> Iterator[float]:
        while self.pipeline.has_non_finished_requests():
            yield self._step()

    def _step(self) -> float:
        began = time.perf_counter()
        self.pipeline.step()
        return time.perf_counter() - began

    def prompt_step(self) -> float:
        """Milliseconds."""
        handles = [self._add(1) for _ in range(PROMPT_STEPS * self.batched // PROMPT)]
        took = median(self._steps())
        del handles
        return took * 1e3

    def start(self, streams: int, prompt: int) -> None:
        """Add sequences, and read their prompts."""
        self._running = [self._add(ENDLESS, prompt) for _ in range(streams)]
        # Those that began first get tokens while other prompts are read.
        for _ in range(2 * math.ceil(streams * prompt / self.batched)):
            self._step()

    def decode_steps(self) -> float:
        """Milliseconds of a step."""
        return median(self._step() for _ in range(BLOCK)) * 1e3

    def finish(self) -> None:
        for handle in self._running:
            handle.stop()
        self._running.clear()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()

    def load(self, streams: int) -> float:
        """Tokens per second."""
        handles = [self._add(ANSWER) for _ in range(streams)]
        total = sum(self._steps())
        del handles
        return streams * ANSWER / total


def serve(told: str, kind: Callable[[str], object] = Contender) -> None:
    """Answer the parent: a line with the name of a method and its arguments, a line with the result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library may print
    try:
        contender = kind(told)
    except RuntimeError as error:
        sys.exit(str(error).strip().splitlines()[-1])
    print(json.dumps(None), file=answers, flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(contender, method)(*arguments)), file=answers, flush=True)
    os._exit(0)  # native destructors may take long


class Side:
    """The parent's end of a contender, which `module` serves. Raises RuntimeError if it does not start."""

    def __init__(self, told: str, module: str = "benchmarks.steps") -> None:
        self.name = told.partition("=")[0]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, *call: object) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(call), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise RuntimeError(f"it ended, exit status {self._process.wait()}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


Rounds = dict[str, dict[str, list[float]]]  # by column, then by contender


def measure(sides: Sequence[Side], streams: Sequence[int], rounds: int, *, prompt: int, load: bool) -> Rounds:
    made: Rounds = {}

    def in_turns(column: str, count: int, call: Callable[[Side], float]) -> None:
        found = made[column] = {side.name: [] for side in sides}
        for number in range(count):
            at = number % len(sides)
            for side in [*sides[at:], *sides[:at]]:
                found[side.name].append(call(side))
        print(f"{column}: {[round(median(v), 2) for v in found.values()]}", file=sys.stderr)

    for side in sides:  # the first steps of an engine are slower
        side.ask("prompt_step")
    in_turns("prompt", max(3, rounds // 3), lambda side: float(side.ask("prompt_step")))
    for n in streams:
        for side in sides:
            side.ask("start", n, prompt)
        in_turns(str(n), rounds, lambda side: float(side.ask("decode_steps")))
        for side in sides:
            side.ask("finish")
    for n in streams if load else ():
        in_turns(f"load {n}", LOAD_ROUNDS, lambda side, n=n: float(side.ask("load", n)))  # type: ignore[misc]
    return made


def table(rounds: Rounds) -> list[str]:
    """Medians; behind each the speed against the first contender's, 1.10 being a tenth faster, and below it the middle half of the turns."""
    first, *others = next(iter(rounds.values()))
    rows = ["| engine | " + " | ".join(rounds) + " |", "|---|" + "--:|" * len(rounds)]
    for name in (first, *others):
        cells = []
        for column, found in rounds.items():
            power = 1 if column.startswith("load") else -1
            ratios = sorted((a / b) ** power for a, b in zip(found[name], found[first], strict=True))
            quarter = len(ratios) // 4
            spread = f"{ratios[quarter]:.2f}..{ratios[-1 - quarter]:.2f}"
            against = "" if name == first else f" ({median(ratios):.3f}; {spread})"
            cells.append(f"{median(found[name]):.1f}{against}")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps")
    parser.add_argument("contender", nargs="*", metavar="NAME=PATH[,OPTION=VALUE]...")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens before those of decoding steps")
    parser.add_argument("--load", action="store_true", help="also whole answers")
    parser.add_argument("--json", type=Path, help="write every turn to this file")
    parser.add_argument("--serve", metavar="CONTENDER", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve)
    sides: list[Side] = []
    try:
        for told in chosen.contender:
            try:
                sides.append(Side(told))
            except RuntimeError as error:
                print(f"skipped: {told}: {error}", file=sys.stderr)
        streams = [int(n) for n in chosen.streams.split(",")]
        rounds = measure(sides, streams, chosen.rounds, prompt=chosen.prompt, load=chosen.load)
    finally:
        for side in sides:
            side.stop()
    if chosen.json:
        chosen.json.write_text(json.dumps(rounds, indent=1))
    print("\n".join(table(rounds)), flush=True)


if __name__ == "__main__":
    main()

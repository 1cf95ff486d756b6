"""Measures how far a repeated request gives the same answer: alone, among others, with its prompt cached.

    python -m benchmarks.seeds [--model PATH] [--cases 8] [--tokens 32] [--others 1,8]
        [--precisions default,f32] [--caches no,yes]

Each case is a prompt with a seed of its own, asked for once alone; what is counted is how many of the cases
give the same text, to the last character, when they are asked for again. The engine is the real one, in this
process, in two precisions (its default, and f32 everywhere), without and with a prefix cache, greedy and at
temperature 1. The others are sampled at temperature 1 and are decoding when the case comes.
"""

from __future__ import annotations

import argparse
import sys
import time

from ovserve.engine.protocol.specs import TextSpec
from ovserve.kinds.text.worker.genai import GenAIEngine
from tests.engine.real import CHAT, EXACT, LIST, add, generate, run

MODEL = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ABOUT = "a dragon", "the sea", "rice", "a clock", "winter", "two brothers", "an old map", "trains"
PRECISIONS = {"default": "{}", "f32": EXACT}
LEAD = 3  # steps that the others are ahead


class Cases:
    def __init__(self, engine: GenAIEngine, count: int, tokens: int, temperature: float) -> None:
        self._engine = engine
        self._prompts = [
            CHAT.format(f"Tell me story number {n} about {ABOUT[n % len(ABOUT)]}.") for n in range(count)
        ]
        self._how = {"temperature": temperature, "max_tokens": tokens, "ignore_eos": True}
        self._tokens = tokens
        self._first = [self._alone(n) for n in range(count)]

    def _alone(self, n: int) -> str:
        return generate(self._engine, self._prompts[n], seed=n, **self._how).text

    def again(self) -> int:
        return sum(self._alone(n) == text for n, text in enumerate(self._first))

    def beside(self, others: int) -> int:
        return sum(self._beside(n, others) == text for n, text in enumerate(self._first))

    def _beside(self, n: int, others: int) -> str:
        for other in range(others):
            add(
                self._engine,
                2 + other,
                LIST,
                seed=1000 * n + other,
                temperature=1.0,
                max_tokens=self._tokens + LEAD,
                ignore_eos=True,
            )
        for _ in range(LEAD):
            self._engine.step()
            self._engine.collect()
        add(self._engine, 1, self._prompts[n], seed=n, **self._how)
        return run(self._engine)[1].text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--others", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=[*PRECISIONS])
    parser.add_argument("--caches", type=lambda text: text.split(","), default=["no", "yes"])
    asked = parser.parse_args()
    began = time.monotonic()
    others = " | ".join(f"among {n}" for n in asked.others)
    print(f"| precision | prefix cache | temperature | alone again | {others} |")
    print("|---|---|---|---|" + "---|" * len(asked.others))
    for precision in asked.precisions:
        for cached in asked.caches:
            caches = cached == "yes"
            engine = GenAIEngine(
                TextSpec(asked.model, enable_prefix_caching=caches, properties=PRECISIONS[precision])
            )
            for temperature in (0.0, 1.0):
                cases = Cases(engine, asked.cases, asked.tokens, temperature)
                row = [cases.again(), *(cases.beside(n) for n in asked.others)]
                counts = " | ".join(f"{same} of {asked.cases}" for same in row)
                print(f"| {precision} | {cached} | {temperature:g} | {counts} |", flush=True)
            del cases, engine
    print(f"in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

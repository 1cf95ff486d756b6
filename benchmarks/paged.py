"""Compares the engine with `engine: "paged"` with the one over the library's pipeline, without the server.

    python -m benchmarks.paged DIRECTORY [--parts steps,drafts,text] [--rounds 12] [--streams 1,8,32,64]

DIRECTORY has an `openvino_model.xml`; the cache has the precision that its graph.pbtxt chooses. As in
`benchmarks.steps`, which this extends, each side is a process, they take turns every four steps, and ratios
are against the first side, the library. A step includes choosing tokens and making text of them. Parts:

- steps: milliseconds of a step, by streams and sampling
- drafts: tokens per second of whole answers of the paged engine, with its drafts against without
- text: how many greedy answers of both engines are equal
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import steps
from ovserve.engine.protocol.messages import Add, StepItem
from ovserve.engine.protocol.specs import PagedTextSpec, TextSpec
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.llm.request import Sampling

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
CODE = """def total(items):
    result = 0
    for item in items:
        result = result + item.price * item.count
    return result


def average(items):
    if not items:
        return 0
    return total(items) / len(items)


def report(items):
    print("total", total(items))
    print("average", average(items))
    for item in items:
        print(item.name, item.price, item.count)
"""
HARBOUR = (
    "The harbour of the old town was built in 1802 by a company of merchants who wanted to ship wool to the "
    "north. It was widened twice, and in 1911 a crane was added. Today it is used by sailing boats. "
)
FILE = Path(__file__).with_name("encoder_forms.py").read_text()
KINDS = {
    "edit a file": [
        f"{task} in this code. Answer with the whole code only.\n{FILE}"
        for task in ("Rename main to run", "Correct typing errors in the comments", "Add a comment to main")
    ],
    "edit": [
        f"Rename the variable result to amount. Answer with the whole code only.\n{CODE}",
        f"Add a docstring to each function. Answer with the whole code only.\n{CODE}",
    ],
    "summarise": [f"Summarise in two sentences: {HARBOUR * 2}", f"What was built, and when? {HARBOUR}"],
    "chat": [
        "Why is the sky blue?",
        "Write a poem about the sea.",
        "What is a tuple in Python?",
        "Explain how a combustion engine works.",
    ],
}
ANSWER = 160  # tokens
FILE_ANSWER = 400
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "0.2": {"temperature": 0.2},
    "1.0": {"temperature": 1.0},
    "1.0, top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "log-probabilities": {"temperature": 0.0, "logprobs": True},
}


class Engine:
    """The methods of a `steps.Contender`, and more."""

    def __init__(self, told: str) -> None:
        name, _, path = told.partition("=")
        properties = _properties(Path(path))
        self._engine: GenAIEngine | PagedEngine = (
            PagedEngine(PagedTextSpec(path, properties=properties))
            if name.startswith("paged")
            else GenAIEngine(TextSpec(path, properties=properties))
        )
        if isinstance(self._engine, PagedEngine):
            self._engine.wait_for_forms()
        self._random = random.Random(1)
        self._id = 0
        self._sampling = Sampling(temperature=0.0, num_assistant_tokens=0)

    def sampling(self, options: dict[str, Any]) -> None:
        """Choose the tokens of later requests so. Nothing is drafted."""
        self._sampling = Sampling(ignore_eos=True, num_assistant_tokens=0, **options)

    def prompt_step(self) -> float:
        began = time.perf_counter()
        for _ in range(2):
            self._add(self._drawn(steps.PROMPT), 1)
        self._run()
        return (time.perf_counter() - began) * 1e3

    def start(self, streams: int, prompt: int) -> None:
        for _ in range(streams):
            self._add(self._drawn(prompt), 2000)
        while self._engine.usage().to_prefill or not self._engine.usage().scheduled:
            self._step()
        self._step()

    def decode_steps(self) -> float:
        return median(self._step() for _ in range(steps.BLOCK))

    def finish(self) -> None:
        for id_ in self._engine.live():
            self._engine.abort(id_)
        self._run()

    def answers(self, streams: int) -> list[str]:
        """Greedy answers, so many at a time."""
        prompts = [CHAT.format(text) for texts in KINDS.values() for text in texts]
        texts: dict[int, str] = {}
        for at in range(0, len(prompts), streams):
            ids = [self._add(prompt, ANSWER) for prompt in prompts[at : at + streams]]
            texts |= dict.fromkeys(ids, "")
            while self._engine.busy:
                self._engine.step()
                for item in self._engine.collect():
                    assert isinstance(item, StepItem)
                    texts[item.id] += item.text
        return list(texts.values())

    def speed(
        self, kind: str, streams: int, drafts: bool, temperature: float, first: int
    ) -> tuple[float, int, int]:
        """Tokens per second after the prompts, of which `first` is the first one's number, and how many tokens
        were drafted and accepted."""
        drafted = None if drafts else 0
        self._sampling = Sampling(temperature=temperature, ignore_eos=True, num_assistant_tokens=drafted)
        texts = KINDS[kind]
        for at in range(streams):
            text = texts[(first + at) % len(texts)]
            self._add(CHAT.format(text), FILE_ANSWER if FILE in text else ANSWER)
        while self._engine.usage().to_prefill or not self._engine.usage().scheduled:
            self._step()
        began, tokens, tried, right = time.perf_counter(), 0, 0, 0
        while self._engine.busy:
            self._engine.step()
            for item in self._engine.collect():
                assert isinstance(item, StepItem)
                tokens, tried, right = tokens + item.tokens, tried + item.drafted, right + item.accepted
        return tokens / (time.perf_counter() - began), tried, right

    def _drawn(self, tokens: int) -> tuple[int, ...]:
        return tuple(self._random.choices(range(steps.FIRST_ID, steps.LAST_ID), k=tokens))

    def _add(self, prompt: str | tuple[int, ...], tokens: int) -> int:
        self._id += 1
        options = {name: getattr(self._sampling, name) for name in Sampling.__struct_fields__}
        sampling = Sampling(**options | {"max_tokens": tokens, "seed": self._id})
        self._engine.add(Add(self._id, prompt, False, sampling))
        return self._id

    def _step(self) -> float:
        """Milliseconds."""
        began = time.perf_counter()
        self._engine.step()
        self._engine.collect()
        return (time.perf_counter() - began) * 1e3

    def _run(self) -> None:
        while self._engine.busy:
            self._step()


def _properties(directory: Path) -> str:
    """Return the plugin_config of the directory's graph."""
    graph = directory / "graph.pbtxt"
    found = re.search(r"plugin_config: '(.*)'", graph.read_text()) if graph.is_file() else None
    return found[1] if found else "{}"


def step_table(sides: list[steps.Side], streams: list[int], rounds: int, prompt: int) -> list[str]:
    rows: list[str] = []
    for name, options in SAMPLINGS.items():
        for side in sides:
            side.ask("sampling", options)
        found = steps.table(steps.measure(sides, streams, rounds, prompt=prompt, load=False))
        rows += ["", f"{name}:", "", *found]
    return rows[1:]


def draft_table(side: steps.Side, kinds: list[str], streams: list[int], rounds: int) -> list[str]:
    rows = ["| text, temperature | " + " | ".join(map(str, streams)) + " |", "|---|" + "--:|" * len(streams)]
    texts = [(kind, temperature, True) for kind in kinds for temperature in (0.0, 0.7)]
    for kind, temperature, drafts in [("chat", 0.0, False), *texts]:
        cells = []
        for n in streams:
            ratios, counts = [], [0, 0]
            for number in range(rounds + 1):
                speeds = {}
                for second in (False, True) if number % 2 else (True, False):
                    speeds[second] = side.ask("speed", kind, n, second and drafts, temperature, number)
                if number:  # the first one learns what steps cost
                    ratios.append(speeds[True][0] / speeds[False][0])
                    counts = [a + b for a, b in zip(counts, speeds[True][1:], strict=True)]
            accepted = (
                f", {counts[1]} of {counts[0]}" if drafts else f" ({min(ratios):.2f}..{max(ratios):.2f})"
            )
            cells.append(f"{median(ratios):.2f}{accepted}")
        name = f"{kind}, {temperature:g}" if drafts else "no drafts against themselves"
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paged")
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--sides", default="library,paged,again", help="library comes first")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--prompt", type=int, default=64, help="tokens before those of decoding steps")
    parser.add_argument("--samplings", default=",".join(SAMPLINGS), help="rows of the steps")
    parser.add_argument("--texts", default=",".join(KINDS), help="rows of the drafts")
    parser.add_argument("--parts", default="text,steps,drafts")
    parser.add_argument("--serve", metavar="SIDE", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        steps.serve(chosen.serve, Engine)
    for name in [
        name for name in SAMPLINGS if not re.search(rf"(^|,){re.escape(name)}(,|$)", chosen.samplings)
    ]:
        del SAMPLINGS[name]
    sides: list[steps.Side] = []
    streams = [int(n) for n in chosen.streams.split(",")]
    try:
        for name in chosen.sides.split(","):
            sides.append(steps.Side(f"{name}={chosen.directory}", "benchmarks.paged"))
        paged = next(side for side in sides if side.name == "paged")
        for part in chosen.parts.split(","):
            if part == "text":
                pairs: list[tuple[str, str]] = []
                for n in (1, 8):
                    pairs += zip(sides[0].ask("answers", n), paged.ask("answers", n), strict=True)
                lines = [f"{sum(a == b for a, b in pairs)} of {len(pairs)} greedy answers are equal"]
            elif part == "steps":
                lines = step_table(sides, streams, chosen.rounds, chosen.prompt)
            else:
                lines = draft_table(paged, chosen.texts.split(","), streams, max(3, chosen.rounds // 3))
            print("\n".join(lines), flush=True)
    except RuntimeError as error:
        sys.exit(str(error))
    finally:
        for side in sides:
            side.stop()


if __name__ == "__main__":
    main()

"""Simulates drafts from n-gram tables of what a server has written. No engine drafts so.

    python -m benchmarks.ngram_drafts DIRECTORY... [--prompts 17] [--tokens 128] [--entries 100000]
        [--costs 1.30,1.12,1.09,1.11]

Records greedy answers to prompts of three kinds, made of this repository's docs and code and of questions, in a
mixed order. Then goes through them again and counts how many tokens a step would have given:

- lookup: what followed the last tokens earlier in the prompt or the answer
- table: what followed them in earlier answers, from at most `--entries` n-grams, the oldest dropped first
- both: lookup first, then the table
- both, gated: drafts only where matches of this length have paid so far

The speed follows from `--costs`, how much longer a step with 1, 2, ... candidates takes than a plain one at one
stream (`make bench-paged`). A step without candidates is plain.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import openvino_genai as ov_genai

ROOT = Path(__file__).parents[1]
LONGEST, SHORTEST = 4, 2  # tokens of an n-gram; one token alone matched too often
PRIOR = 4  # drafts of a length before their gain is believed
SUMMARISE, EDIT, CHAT = "summarise a given text", "edit given code", "free chat"
WORDS = 60, 200  # of a paragraph
LINES = 8, 25  # of a function
QUESTIONS = """\
What would you pack for a week of walking in the mountains, and why?
Explain to a child why the sky is blue.
Write a short story about a lighthouse and the people who keep it.
How do I make a good cup of coffee without a machine?
What are the advantages of learning a second language?
Give me five ideas for a birthday party in winter.
How does a refrigerator work?
Write a polite letter to a neighbour about loud music.
What should I look for when I buy a used bicycle?
Describe a day in the life of a baker.
Why do leaves change their colour in autumn?
How can I sleep better at night?
Write a poem about the sea.
What is the difference between weather and climate?
Tell me about the history of the printing press.
How do I prepare for a job interview?
Which vegetables grow well in a shady garden?""".splitlines()

Drafts = dict[str, "Count"]


@dataclass
class Answer:
    kind: str
    prompt: list[int]
    made: list[int]


@dataclass
class Count:
    tokens: int = 0
    steps: int = 0
    time: float = 0.0  # in plain steps

    def __add__(self, other: Count) -> Count:
        return Count(self.tokens + other.tokens, self.steps + other.steps, self.time + other.time)


@dataclass
class Table:
    """The token that last followed each n-gram."""

    entries: int
    _next: OrderedDict[tuple[int, ...], int] = field(default_factory=OrderedDict)

    def learn(self, ids: Sequence[int], at: int) -> None:
        """Learn that ids[at] followed those before it."""
        for length in range(SHORTEST, min(LONGEST, at) + 1):
            key = tuple(ids[at - length : at])
            self._next.pop(key, None)
            self._next[key] = ids[at]
            if len(self._next) > self.entries:
                self._next.popitem(last=False)

    def draft(self, ids: Sequence[int], count: int) -> tuple[list[int], int]:
        """Return up to `count` tokens, and the length of the n-gram that matched first."""
        made, tail, first = list[int](), list(ids[-LONGEST:]), 0
        while len(made) < count:
            for length in range(min(LONGEST, len(tail)), SHORTEST - 1, -1):
                if (token := self._next.get(tuple(tail[-length:]))) is not None:
                    break
            else:
                break
            first = first or length
            made.append(token)
            tail = [*tail[1 - LONGEST :], token]
        return made, first


@dataclass
class Gate:
    """Remembers by the length of the match what drafts have gained."""

    costs: Sequence[float]
    _gained: dict[int, list[float]] = field(default_factory=dict)

    def open(self, length: int) -> bool:
        gains = self._gained.get(length, [])
        return len(gains) < PRIOR or sum(gains) / len(gains) > 0

    def note(self, length: int, candidates: int, accepted: int) -> None:
        self._gained.setdefault(length, []).append(accepted + 1 - self.costs[candidates - 1])


def prompts(count: int) -> Iterator[tuple[str, str]]:
    """Yield kinds and prompts, `count` of each kind."""
    pieces = [p for file in sorted((ROOT / "docs").glob("*.md")) for p in file.read_text().split("\n\n")]
    prose = [p for p in pieces if WORDS[0] <= len(p.split()) <= WORDS[1] and p[0] not in "|`#"]
    functions = list[str]()
    for file in sorted((ROOT / "ovserve/llm").rglob("*.py")):
        text = file.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and LINES[0] <= node.end_lineno - node.lineno <= LINES[1]:  # type: ignore[operator]
                functions.append(ast.get_source_segment(text, node) or "")
    pick = random.Random(1)
    for text in pick.sample(prose, count):
        yield SUMMARISE, f"Summarise this text, keeping its words where you can:\n\n{text}"
    for code in pick.sample(functions, count):
        yield EDIT, f"Add comments to this code and give back all of it:\n\n```python\n{code}\n```"
    for question in QUESTIONS[:count]:
        yield CHAT, question


def record(directory: str, count: int, tokens: int) -> list[Answer]:
    asked = list(prompts(count))
    random.Random(2).shuffle(asked)
    scheduling = ov_genai.SchedulerConfig()
    scheduling.cache_size = 1
    pipeline = ov_genai.ContinuousBatchingPipeline(directory, scheduling, "CPU", {})
    tokenizer = pipeline.get_tokenizer()
    config = ov_genai.GenerationConfig(max_new_tokens=tokens)
    config.set_eos_token_id(tokenizer.get_eos_token_id())
    inputs = [
        tokenizer.encode(
            tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True),
            add_special_tokens=False,
        ).input_ids
        for _, text in asked
    ]
    made = pipeline.generate(inputs, [config] * len(inputs))
    return [
        Answer(kind, ids.data[0].tolist(), list(result.m_generation_ids[0]))
        for (kind, _), ids, result in zip(asked, inputs, made, strict=True)
    ]


def simulate(
    answer: Answer, own: Table | None, shared: Table | None, gate: Gate | None, costs: Sequence[float]
) -> Count:
    """`own` is new for each answer and learns from its prompt, `shared` from answers only."""
    ids, count = list(answer.prompt), Count()
    if own is not None:
        for at in range(1, len(ids)):
            own.learn(ids, at)
    rest = list(answer.made)
    while rest:
        candidates, length = list[int](), 0
        for table in (own, shared):
            if table is not None and not candidates:
                candidates, length = table.draft(ids, len(costs))
                if gate is not None and length and not gate.open(length):
                    candidates = []
        accepted = next(
            (i for i, (a, b) in enumerate(zip(candidates, rest, strict=False)) if a != b),
            min(len(candidates), len(rest)),
        )
        if gate is not None and candidates:
            gate.note(length, len(candidates), accepted)
        new, rest = rest[: accepted + 1], rest[accepted + 1 :]
        for token in new:
            ids.append(token)
            for table in (own, shared):
                if table is not None:
                    table.learn(ids, len(ids) - 1)
        cost = costs[len(candidates) - 1] if candidates else 1.0
        count += Count(len(new), 1, cost)
    return count


def run(answers: Sequence[Answer], entries: int, costs: Sequence[float]) -> dict[str, dict[str, Count]]:
    """Return counts by form, then by kind."""
    found: dict[str, dict[str, Count]] = {}
    for name in ("lookup", "table", "both", "both, gated"):
        shared = None if name == "lookup" else Table(entries)
        gate = Gate(costs) if name.endswith("gated") else None
        kinds = found[name] = {kind: Count() for kind in (SUMMARISE, EDIT, CHAT)}
        for answer in answers:
            own = None if name == "table" else Table(entries)
            kinds[answer.kind] += simulate(answer, own, shared, gate, costs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ngram_drafts")
    parser.add_argument("directory", nargs="+", help="a model in OpenVINO IR form")
    parser.add_argument("--prompts", type=int, default=len(QUESTIONS), help="of each kind")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--entries", type=int, default=100_000, help="n-grams of the table")
    parser.add_argument("--costs", default="1.30,1.12,1.09,1.11", help="of steps with 1, 2, ... candidates")
    chosen = parser.parse_args()
    costs = [float(cost) for cost in chosen.costs.split(",")]
    print(f"| model, drafts | {SUMMARISE} | {EDIT} | {CHAT} |\n|---|--:|--:|--:|")
    for directory in chosen.directory:
        answers = record(directory, chosen.prompts, chosen.tokens)
        for name, kinds in run(answers, chosen.entries, costs).items():
            cells = [f"{c.tokens / c.time:.2f} ({c.tokens / c.steps:.2f})" for c in kinds.values()]
            print(f"| {Path(directory).name}, {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""Measures grammars of a paged engine: compilation, masks, and masks on logits. `make bench-masks`, a minute.

    python -m benchmarks.grammar_masks models/smollm2

Texts are written at random under each grammar, all allowed tokens equally likely, four of up to 100 tokens. One
thread; times are CPU times of compilation and elapsed times of the rest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import fmean, median
from typing import Any

import numpy as np

from ovserve.kinds.text.worker.genai.vocabulary import read_vocabulary
from ovserve.kinds.text.worker.paged.grammars import Compiler
from ovserve.kinds.text.worker.paged.masks import mask_bits, mask_of, restrict, words
from ovserve.llm.grammar.constraint import (
    Format,
    any_text,
    constrain,
    json_object,
    regex,
    structural_tag,
    tag,
    triggered,
)
from ovserve.llm.grammar.writer import compact
from tests.schemas import obj

SEEDS, TOKENS, REPEAT = 4, 100, 30
ROWS = (1, 8, 32, 64)


def grammars() -> Iterator[tuple[str, Format]]:
    name = {"type": "string", "maxLength": 12}
    weather = compact(
        obj(city={"enum": ["Oslo", "Rome"]}, days={"type": "integer", "minimum": 1, "maximum": 9})
    )
    call = tag('<tool_call>\n{"name": "get_weather", "arguments": ', weather, "}\n</tool_call>")
    yield "free text, a tool's call", triggered(["<tool_call>"], [call], only_one=False)
    yield "thinking up to </think>", {**tag("<think>", any_text(), ""), "end": ["</think>"]}
    yield "regex of digits", regex("[0-9]{3}-[0-9]{4}")
    yield "JSON object", json_object()
    yield "schema of free strings", compact(obj(name={"type": "string"}, city={"type": "string"}))
    yield "schema of strings up to 12", compact(obj(name=name, city=name))
    yield "nested schema", compact(obj(person=obj(name=name, home=obj(city=name))))
    yield "format email", compact({"type": "string", "format": "email"})
    yield "maxLength 1,000,000", compact({"type": "string", "maxLength": 1_000_000})


def measure(compiler: Compiler, form: Format) -> str:
    began = time.process_time()
    grammar, fault = compiler.compile(structural_tag(constrain(form, "x").format))
    compiled = time.process_time() - began
    assert grammar is not None, fault
    fills, accepts = [], []
    row = np.empty(words(compiler.logits), np.int32)
    for seed in range(SEEDS):
        random, matcher = np.random.default_rng(seed), compiler.matcher(grammar)
        for _ in range(TOKENS):
            began = time.perf_counter()
            matcher.fill(row)
            fills.append(time.perf_counter() - began)
            allowed = np.flatnonzero(mask_bits(row & ~compiler.stops, compiler.logits))
            if not len(allowed):
                break
            token = int(random.choice(allowed))
            began = time.perf_counter()
            matcher.accept(token)
            accepts.append(time.perf_counter() - began)
    return (
        f"{compiled * 1e3:8.1f} ms {grammar.native.memory_size_bytes() / 1e3:8.0f} kB {fmean(fills) * 1e6:8.0f} us"
        f" {max(fills) * 1e6:8.0f} us {fmean(accepts) * 1e6:6.1f} us"
    )


def timed(call: Callable[[], object]) -> float:
    """The median in microseconds."""
    times = []
    for _ in range(REPEAT):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times) * 1e6


def applied(logits: int, rows: int, share: float) -> float:
    random: Any = np.random.default_rng(0)
    row = random.normal(size=(rows, logits)).astype(np.float32)
    masks = np.stack(
        [mask_of(np.flatnonzero(random.random(logits) < share).tolist(), logits) for _ in range(rows)]
    )
    return timed(lambda: [*map(restrict, row, masks)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="its directory, of which only the tokenizer is read")
    vocabulary = read_vocabulary(parser.parse_args().model)
    compiler = Compiler(*vocabulary)
    print(
        f"{vocabulary.logits} tokens\n{'':28} {'compile':>11} {'memory':>11} {'mask':>11} {'at most':>11} {'accept':>9}"
    )
    for name, form in grammars():
        print(f"{name:28} {measure(compiler, form)}", flush=True)
    print("masks on logits, by rows: allowed 0.1 %, half, 99.9 %")
    for rows in ROWS:
        shares = [applied(vocabulary.logits, rows, share) for share in (0.001, 0.5, 0.999)]
        print(f"{rows:4} " + " ".join(f"{us:9.0f} us" for us in shares), flush=True)


if __name__ == "__main__":
    main()

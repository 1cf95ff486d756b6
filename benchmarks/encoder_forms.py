"""Milliseconds of an encoder by its form: cores, fixed or dynamic shapes, and precision, in turns.

    python -m benchmarks.encoder_forms [--rounds 5] [--shapes 1x16,1x32,1x48,4x16] [--precisions f32,bf16]

Every form runs once in every round. A cell is the median over the rounds of the fastest of ten inferences.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import openvino as ov

from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.runner import ALL_CORES, ONE_CORE
from tests.conftest import ROOT

CORES: dict[str, dict[str, Any]] = {"one core": ONE_CORE, "all cores": ALL_CORES}
INFERENCES = 10


class Form:
    """A compiled model with inputs of one shape."""

    def __init__(
        self, model: ov.Model, shape: tuple[int, int], properties: dict[str, Any], fixed: bool
    ) -> None:
        model = model.clone()
        if fixed:
            model.reshape({port: list(shape) for port in model.inputs})
        self._request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
        ids = np.random.default_rng(0).integers(1000, 20000, shape)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        self._inputs = {
            name: a for name, a in given.items() if any(name in i.get_names() for i in model.inputs)
        }
        self.rounds: list[float] = []

    def run(self) -> None:
        seconds = []
        for _ in range(INFERENCES):
            began = time.perf_counter()
            self._request.infer(self._inputs, share_inputs=True)
            seconds.append(time.perf_counter() - began)
        self.rounds.append(min(seconds) * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models/minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default="1x16,1x32,1x48,4x16", help="rows x tokens")
    parser.add_argument("--precisions", default="f32,bf16")
    asked = parser.parse_args()
    model = models.pool(models.read(asked.model), "MEAN", True)
    print("| rows x tokens | precision | cores | dynamic | fixed |\n|---|---|---|--:|--:|")
    for text in asked.shapes.split(","):
        rows, _, tokens = text.partition("x")
        forms = {
            (precision, cores, fixed): Form(
                model,
                (int(rows), int(tokens)),
                {"INFERENCE_PRECISION_HINT": precision, **properties},
                fixed,
            )
            for precision in asked.precisions.split(",")
            for cores, properties in CORES.items()
            for fixed in (False, True)
        }
        for number in range(asked.rounds):
            for form in list(forms.values())[:: 1 if number % 2 == 0 else -1]:
                form.run()
        made = {key: median(form.rounds) for key, form in forms.items()}
        for precision in asked.precisions.split(","):
            for cores in CORES:
                dynamic, fixed = made[precision, cores, False], made[precision, cores, True]
                print(f"| {text} | {precision} | {cores} | {dynamic:.2f} | {fixed:.2f} |", flush=True)


if __name__ == "__main__":
    main()

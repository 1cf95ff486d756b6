"""Which of its two compiled models the runner of encoders takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from ovserve.engine.backends.embeddings.model import Compiled, Output, usable_cores
from ovserve.engine.backends.embeddings.pool import BUDGET, Job
from ovserve.engine.backends.embeddings.runner import Runner

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="one core has one compiled model")


@pytest.fixture
def runner() -> Iterator[Runner]:
    """A runner of a model that adds the ids of each row."""
    ids, mask = (op.parameter([-1, -1], ov.Type.i64) for _ in range(2))
    ids.output(0).set_names({"input_ids"})
    mask.output(0).set_names({"attention_mask"})
    shown = op.convert(op.multiply(ids, mask), ov.Type.f32)
    total = op.result(op.reduce_sum(shown, op.constant(np.array([1])), True))
    made = Runner(ov.Model([total], [ids, mask], "sum"), "CPU", {}, 0)
    yield made
    made.close()


def run(runner: Runner, jobs: Sequence[Job]) -> None:
    runner.submit(*jobs)
    for job in jobs:
        assert job.done.wait(60)
        assert job.results is not None
        assert job.results[0, 0] == job.rows[0].sum()


def test_one_client_soon_gets_all_cores_after_many_even_with_long_texts(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[int] = []
    infer = Compiled.infer

    def noting(self: Compiled, *given: Any) -> Output:
        streams.append(len(self.requests))
        return infer(self, *given)

    monkeypatch.setattr(Compiled, "infer", noting)
    run(runner, [Job([np.arange(16)]) for _ in range(64)])
    assert set(streams) == {usable_cores()}
    for _ in range(12):
        run(runner, [Job([np.arange(BUDGET // 2 + 1)])])  # so many tokens are run without a wait
    assert streams[-1] == 1

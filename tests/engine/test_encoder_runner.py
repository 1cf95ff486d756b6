"""Which of its compiled models the runner of encoders takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from ovserve.engine.host.cpu import Processor, properties_of
from ovserve.kinds.encoders.worker.model import (
    Compiled,
    Output,
    Row,
    matrix_bytes,
    usable_cores,
)
from ovserve.kinds.encoders.worker.pool import BATCH_TOKENS, Job
from ovserve.kinds.encoders.worker.runner import TIMED_INFERENCES, FixedShape, Runner

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
        run(runner, [Job([np.arange(BATCH_TOKENS // 2 + 1)])])  # so many tokens are run without a wait
    assert streams[-1] == 1


def test_streams_share_what_waits_or_will_come_again(runner: Runner) -> None:
    with runner._changed:  # the streams are idle, and wait for this lock
        jobs = [Job([np.arange(9)]) for _ in range(8)]
        runner._add(jobs[:4])
        assert runner._share() == 2
        runner._add(jobs[4:])
        assert runner._share() == 4
        runner._pool.take(4)
        assert runner._share() == 4, "the other four come again"


def until(runner: Runner, rows: int, seen: Callable[[], bool]) -> None:
    """Run batches of rows of 9 tokens until this holds; a shape is compiled on a thread of its own."""
    deadline = time.monotonic() + 230
    while not seen():
        assert time.monotonic() < deadline
        run(runner, [Job([np.arange(9)] * rows)])


def proven(runner: Runner) -> bool:
    shapes = runner._shapes
    return shapes is not None and (made := shapes._made) is not None and made.proven


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Tokens of each inference by a model of one shape, with the thread that ran it."""
    seen: list[tuple[int, str]] = []
    infer = FixedShape.infer

    def noting(self: FixedShape, *given: Any) -> Output:
        seen.append((self.tokens, threading.current_thread().name))
        return infer(self, *given)

    monkeypatch.setattr(FixedShape, "infer", noting)
    return seen


def test_a_shape_that_comes_often_gets_a_model_of_its_own(
    runner: Runner, used: list[tuple[int, str]]
) -> None:
    until(runner, 1, lambda: proven(runner))
    assert 16 in runner.counts().padded, "the padding is counted"
    for size in (16, 3, 11):
        run(runner, [Job([np.arange(size) + 1])])
    before = len(used)
    for size in (40, 9, 20) * 20:
        run(runner, [Job([np.arange(size)])])
    assert len(used) == before, "not among other sizes"


def test_a_lone_short_row_is_run_by_the_thread_that_brings_it(
    runner: Runner, used: list[tuple[int, str]]
) -> None:
    until(runner, 1, lambda: proven(runner))
    here = threading.current_thread().name
    for _ in range(20):  # until no others are expected
        time.sleep(0.001)  # as a client takes to come again
        job = Job([np.arange(9)])
        runner.run(job)
        assert job.done.wait(30)
    assert used[-1] == (16, here)
    mine = [thread for _, thread in used].count(here)
    time.sleep(0.001)
    pair = [Job([np.arange(9)]) for _ in range(2)]
    for job in pair:
        runner.run(job)
        assert job.done.wait(30)
    assert [thread for _, thread in used].count(here) == mine + 1, "the second one has waited"
    mine += 1
    many = [Job([np.arange(9)]) for _ in range(8)]
    runner.run(*many)
    assert all(job.done.wait(30) for job in many)
    runner.run(after := Job([np.arange(9)]))
    assert after.done.wait(30)
    assert [thread for _, thread in used].count(here) == mine, "others were there a moment ago"


def test_a_model_of_one_shape_that_answers_otherwise_is_not_used(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def other(self: FixedShape, row: Row, *rest: Any) -> Output:
        asked.append(len(row))
        return np.full((1, 1), 35.99, np.float32)

    monkeypatch.setattr(FixedShape, "infer", other)
    until(runner, 1, lambda: bool(asked))  # each result is checked
    for _ in range(20):
        run(runner, [Job([np.arange(9)])])
    assert len(asked) == TIMED_INFERENCES, "and only when it is proven"


def test_a_shape_that_is_slow_on_one_core_gets_a_model_for_all_cores(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    infer = FixedShape.infer

    def slow(self: FixedShape, *given: Any) -> Output:
        seen.append(self.one_core)
        if self.one_core:
            time.sleep(0.05)
        return infer(self, *given)

    monkeypatch.setattr(FixedShape, "infer", slow)
    until(runner, 1, lambda: proven(runner))
    run(runner, [Job([np.arange(9)])])
    assert seen[:TIMED_INFERENCES] == [True] * TIMED_INFERENCES
    assert not any(seen[TIMED_INFERENCES:])
    assert len(seen) > TIMED_INFERENCES


def test_tables_of_embeddings_do_not_count_as_matrices() -> None:
    ids = op.parameter([-1, -1], ov.Type.i64)
    table, matrix = op.constant(np.ones((100, 8), np.float32)), op.constant(np.ones((8, 4), np.float32))
    found = op.gather(table, ids, op.constant(np.int64(0)))
    model = ov.Model([op.result(op.matmul(found, matrix, False, False))], [ids], "tables")
    assert 8 * 4 * 4 <= matrix_bytes(model) < 100 * 8 * 4


@pytest.mark.parametrize(
    ("name", "flags", "given", "device", "precision"),
    [
        ("Intel(R) Xeon(R) Processor", "avx512f avx512_bf16", "{}", "CPU", "f32"),
        ("Intel(R) Xeon(R) Processor", "avx512f avx512_bf16 amx_bf16", "{}", "CPU", None),
        ("Intel(R) Xeon(R) Processor", "avx512f", "{}", "CPU", None),
        ("AMD EPYC", "avx512f avx512_bf16", "{}", "CPU", None),
        ("Intel(R) Xeon(R) Processor", "avx512_bf16", "{}", "GPU", None),
        ("Intel(R) Xeon(R) Processor", "avx512_bf16", '{"INFERENCE_PRECISION_HINT": "bf16"}', "CPU", "bf16"),
        ("Intel(R) Xeon(R) Processor", "avx512_bf16", '{"EXECUTION_MODE_HINT": "PERFORMANCE"}', "CPU", None),
    ],
)
def test_the_precision_is_f32_where_bf16_is_slower(
    monkeypatch: pytest.MonkeyPatch, name: str, flags: str, given: str, device: str, precision: str | None
) -> None:
    here = Processor(name, flags=frozenset(flags.split()))
    monkeypatch.setattr("ovserve.engine.host.cpu.processor", lambda: here)
    assert properties_of(given, device).get("INFERENCE_PRECISION_HINT") == precision

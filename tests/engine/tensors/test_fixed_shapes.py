"""The second compilation of a plain model for the shapes of most calls: when it is made, used and given
up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovserve.engine.protocol.call_backend import Invocation
from ovserve.engine.protocol.messages import Call
from ovserve.errors import InvalidArgument
from ovserve.kinds.tensors.spec import GivenTensor, InferArguments, TensorSpec
from ovserve.kinds.tensors.worker.batching import _power_of_two
from ovserve.kinds.tensors.worker.engine import (
    FREQUENT_CALLS,
    MAX_COUNTED_SHAPES,
    REPLACEMENT_FACTOR,
    FixedShapes,
    TensorEngine,
)
from tests.conftest import until


@contextmanager
def engine(path: Path, **options: Any) -> Iterator[TensorEngine]:
    made = TensorEngine(TensorSpec(str(path), **options))
    try:
        yield made
    finally:
        made.close()


def infer(made: TensorEngine, *arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    arguments = InferArguments(
        tuple(GivenTensor(i, array.shape) for i, array in enumerate(arrays)),
        tuple(range(len(made.facts.outputs))),
    )
    invocation = Invocation(Call(1, "infer", msgspec.msgpack.encode(arguments), ()))
    invocation.blobs = tuple(bytearray(array.tobytes()) for array in arrays)  # type: ignore[arg-type]
    calls = made.call(invocation)
    result = next(calls)
    found = [
        np.frombuffer(bytes(blob), np.float32).reshape(shape)
        for shape, blob in zip(result.value.shapes, result.blobs, strict=True)
    ]
    calls.close()  # type: ignore[attr-defined]
    return found


def fixed(made: TensorEngine) -> FixedShapes:
    assert made._fixed is not None
    return made._fixed


def product(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return random.random((rows, 3), np.float32), random.random((3, 4), np.float32)


def check_product(made: TensorEngine, rows: int, seed: int) -> None:
    left, right = product(rows, seed)
    (found,) = infer(made, left, right)
    assert found.shape == (rows, 4)
    assert np.allclose(found, left @ right, rtol=0.02)


def chosen_rows(path: Path) -> Path:
    """Write a model that fails unless three elements of `chosen` are not zero. Then it breaks."""
    given, chosen = ops.parameter([-1, 4], np.float32, name="x"), ops.parameter([-1], np.int32, name="chosen")
    at = ops.squeeze(ops.non_zero(chosen, "i64"), ops.constant(np.int64(0)))
    rows = ops.gather(given, at, ops.constant(np.int64(0)))
    turned = ops.transpose(rows, ops.constant(np.array([1, 0])))
    weights = ops.constant(np.ones((3, 2), np.float32))
    product = ops.matmul(turned, weights, False, False)
    ov.save_model(ov.Model([product], [given, chosen], "chosen"), path / "model.xml")
    return path


def test_a_compilation_on_which_a_call_fails_is_given_up(tmp_path: Path) -> None:
    rows = np.ones((5, 4), np.float32)
    right, wrong = np.array([1, 1, 1, 0, 0], np.int32), np.array([1, 1, 1, 1, 0], np.int32)
    with engine(chosen_rows(tmp_path)) as made:
        for _ in range(FREQUENT_CALLS):
            infer(made, rows, right)
        until(lambda: bool(fixed(made)._variants))
        infer(made, rows, right)
        for wrongs in (1, 2, 3):
            for _ in range(wrongs):
                with pytest.raises(InvalidArgument, match="rejects"):
                    infer(made, rows, wrong)
            for _ in range(3):
                assert infer(made, rows, right)[0].tolist() == [[3.0, 3.0]] * 4
        assert not fixed(made).open


def test_shapes_that_do_not_go_together_are_not_compiled(
    plain_models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with engine(plain_models / "product/1") as made:
        found = fixed(made)
        for _ in range(2 * FREQUENT_CALLS):
            assert infer(made, np.ones((2, 0), np.float32), np.ones((0, 4), np.float32))[0].shape == (2, 4)
        assert not found._making, "none for tensors without elements"
        wrong = np.ones((2, 3), np.float32), np.ones((5, 4), np.float32)
        for _ in range(FREQUENT_CALLS):
            with pytest.raises(InvalidArgument, match="(?i)incompatible"):
                infer(made, *wrong)
        until(lambda: not found._making)
        for seed in range(FREQUENT_CALLS):
            check_product(made, 2, seed)
        until(lambda: rows_of(found) == [2])
        check_product(made, 2, 0)
    assert "not compiled" not in capfd.readouterr().out, "the model was asked before"


def test_the_shapes_of_most_calls_get_a_compilation_and_others_still_work(plain_models: Path) -> None:
    with engine(plain_models / "product/1") as made:
        found = fixed(made)
        for seed in range(FREQUENT_CALLS - 1):
            check_product(made, 2, seed)
        assert not found._variants
        assert not found._making
        check_product(made, 2, FREQUENT_CALLS)
        until(lambda: bool(found._variants))
        (compiled,) = found._variants.values()
        assert not compiled.proven
        for seed in range(10):
            check_product(made, 2, seed)
            check_product(made, 3 + seed, seed)
        assert compiled.proven
        assert compiled.uses == 10
        assert [*found._variants] == [((2, 3), (3, 4))]
        with pytest.raises(InvalidArgument, match="(?i)incompatible"):
            infer(made, np.ones((2, 3), np.float32), np.ones((5, 4), np.float32))
        check_product(made, 2, 1)


def test_other_shapes_take_over_when_more_calls_have_them(plain_models: Path) -> None:
    with engine(plain_models / "product/1") as made:
        found = fixed(made)
        for seed in range(FREQUENT_CALLS):
            check_product(made, 2, seed)
        until(lambda: bool(found._variants))
        for seed in range(FREQUENT_CALLS):
            check_product(made, 2, seed)
            check_product(made, 5, seed)
        assert rows_of(found) == [2], "they are used as often"
        for seed in range(FREQUENT_CALLS):
            check_product(made, 5, seed)
        until(lambda: rows_of(found) == [5])
        check_product(made, 5, 2)
        check_product(made, 2, 2)
        for seed in range(FREQUENT_CALLS * REPLACEMENT_FACTOR - 2):
            check_product(made, 7, seed)
        assert rows_of(found) == [5], "each change needs more calls than the last one"


def rows_of(found: FixedShapes) -> list[int]:
    return sorted(shapes[0][0] for shapes in found._variants)


def test_calls_of_ever_other_shapes_compile_nothing(plain_models: Path) -> None:
    with engine(plain_models / "product/1") as made:
        for seed in range(3 * FREQUENT_CALLS):
            check_product(made, 2 + seed % (MAX_COUNTED_SHAPES + 8), seed)
        assert not fixed(made)._variants
        assert not fixed(made)._making
        assert len(fixed(made)._calls) <= MAX_COUNTED_SHAPES


def test_shapes_that_come_no_more_make_room(plain_models: Path) -> None:
    with engine(plain_models / "product/1") as made:
        for seed in range(4 * MAX_COUNTED_SHAPES):
            check_product(made, 2 + seed % MAX_COUNTED_SHAPES, seed)
        for seed in range(2 * FREQUENT_CALLS):
            check_product(made, 2 + MAX_COUNTED_SHAPES, seed)
        until(lambda: rows_of(fixed(made)) == [2 + MAX_COUNTED_SHAPES])


def test_threads_that_call_while_it_is_compiled_and_closed(plain_models: Path) -> None:
    failures: list[BaseException] = []

    def work(made: TensorEngine, rows: int) -> None:
        try:
            for seed in range(2 * FREQUENT_CALLS):
                check_product(made, rows, seed)
        except BaseException as error:  # noqa: BLE001  the test reports it
            failures.append(error)

    for _ in range(3):
        with engine(plain_models / "product/1", nireq=2) as made:
            threads = [threading.Thread(target=work, args=(made, rows)) for rows in (2, 2, 2, 7)]
            for thread in threads:
                thread.start()
            threads[0].join()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_model_that_answers_otherwise_keeps_its_own_compilation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ops.parameter([-1, 4], np.float32, name="x")
    shape = ops.shape_of(given)
    noise = ops.random_uniform(shape, ops.constant(np.float32(0)), ops.constant(np.float32(1)), "f32", 0, 0)
    ov.save_model(ov.Model([ops.add(given, noise)], [given], "noise"), tmp_path / "model.xml")
    with engine(tmp_path) as made:
        ones = np.ones((2, 4), np.float32)
        for _ in range(FREQUENT_CALLS):
            infer(made, ones)
        until(lambda: bool(fixed(made)._variants))
        (answered,) = infer(made, ones)
        assert (answered >= 1).all()
        assert not fixed(made).open
        for _ in range(2 * FREQUENT_CALLS):
            infer(made, ones)
        assert not fixed(made)._variants
    assert "answers otherwise: not used" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["dummy", "summator", "types"])
def test_models_without_a_dimension_to_fix_with_state_or_texts_have_none(
    plain_models: Path, name: str
) -> None:
    with engine(plain_models / name / "1") as made:
        assert not fixed(made).open


def test_it_can_be_turned_off(plain_models: Path) -> None:
    with engine(plain_models / "product/1", fixed_shapes=False) as made:
        assert made._fixed is None
        check_product(made, 2, 0)


async def test_batches_have_few_sizes(plain_models: Path) -> None:
    """Twelve callers at a time, each with its own numbers, through the whole engine."""
    made = TensorEngine(TensorSpec(str(plain_models / "two/1"), max_batch_size=8))
    sizes: list[int] = []
    assert made._batcher is not None
    infer_batch = made._batcher._infer

    def noted(batch: list[Any]) -> None:
        sizes.append(len(batch))
        infer_batch(batch)

    made._batcher._infer = noted  # type: ignore[method-assign]
    ended: dict[int, Any] = {}

    def deliver(outcomes: Any) -> None:
        for invocation, outcome in outcomes:
            ended[invocation.id] = outcome.blobs[0].tobytes()

    for round_ in range(200):
        for number in range(round_ % 12 + 1):
            row = np.full((1, 10), number + round_, np.float32)
            arguments = InferArguments((GivenTensor(0, (1, 10)), GivenTensor(1, (1, 10))), (0, 1))
            invocation = Invocation(Call(number, "infer", msgspec.msgpack.encode(arguments), ()))
            invocation.blobs = (bytearray(row.tobytes()),) * 2  # type: ignore[assignment]
            assert made.begin(invocation, deliver)
        made.began()
        until(lambda count=round_ % 12 + 1: len(ended) == count)
        for number, raw in ended.items():
            assert np.frombuffer(raw, np.float32).tolist() == [2.0 * (number + round_)] * 10
        ended.clear()
    assert {*sizes} <= {1, 2, 4, 8}
    assert 0 < len(fixed(made)._variants) <= 4
    made.close()


def test_the_largest_power_of_two_of_rows() -> None:
    def cut(*rows: int) -> int:
        batch: Any = [SimpleNamespace(rows=count) for count in rows]
        return sum(one.rows for one in _power_of_two(batch, sum(rows)))

    assert [cut(*[1] * count) for count in range(1, 9)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert cut(3, 1, 1) == 4
    assert cut(3, 3) == 6
    assert cut(2, 3) == 2

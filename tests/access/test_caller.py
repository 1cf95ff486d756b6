"""What a key allows: buckets that refill, waits that are true, slots, models."""

from __future__ import annotations

from contextvars import Context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.access import ANYONE, NOBODY, Caller, RequestContext, Rights, as_system, calling, current_request
from ovserve.access.caller import Bucket
from ovserve.access.request_context import Answering
from ovserve.errors import PermissionDenied, RateLimited


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@given(per_minute=st.integers(1, 10_000), taken=st.integers(0, 50_000))
def test_after_the_wait_there_is_one_and_not_before(per_minute: int, taken: int) -> None:
    clock = Clock()
    bucket = Bucket(per_minute, clock)
    bucket.take(taken)
    wait = bucket.wait()
    assert (wait == 0) == (taken <= per_minute - 1)
    if wait:
        clock.now += wait * 0.99
        assert bucket.wait() > 0
        clock.now += wait * 0.01 + 1e-6
        assert bucket.wait() == pytest.approx(0, abs=1e-6)


def test_a_bucket_never_holds_more_than_a_minute() -> None:
    clock = Clock()
    bucket = Bucket(10, clock)
    clock.now += 3600
    bucket.take(10)
    assert bucket.wait() == pytest.approx(6)


def test_requests_are_refused_with_the_time_to_come_again() -> None:
    clock = Clock()
    caller = Caller("a", Rights(requests_per_minute=2), clock)
    caller.ask()
    caller.ask()
    with pytest.raises(RateLimited, match="2 requests per minute") as caught:
        caller.ask()
    assert caught.value.retry_after == pytest.approx(30)
    clock.now += 30
    caller.ask()


def test_tokens_are_owed_by_the_next_request() -> None:
    clock = Clock()
    caller = Caller("a", Rights(tokens_per_minute=60), clock)
    caller.ask()
    caller.spend(100)
    with pytest.raises(RateLimited, match="60 tokens per minute") as caught:
        caller.ask()
    assert caught.value.retry_after == pytest.approx(41)
    assert caller.remaining() == {"tokens": (60, 0)}


def test_a_refused_request_takes_nothing() -> None:
    clock = Clock()
    caller = Caller("a", Rights(requests_per_minute=5, tokens_per_minute=10), clock)
    caller.spend(50)
    for _ in range(9):
        with pytest.raises(RateLimited):
            caller.ask()
    assert caller.remaining()["requests"] == (5, 5)


def test_a_slot_is_free_again_after_the_answer_and_after_a_refusal() -> None:
    caller = Caller("a", Rights(concurrency=1, requests_per_minute=2))
    for _ in range(2):
        with (
            Answering(RequestContext(caller)),
            pytest.raises(RateLimited, match="1 request at the same time"),
        ):
            Answering(RequestContext(caller)).__enter__()
    with pytest.raises(RateLimited, match="per minute"):
        Answering(RequestContext(caller)).__enter__()
    assert caller.running == 0


def test_a_full_key_comes_again_when_its_oldest_answer_should_end() -> None:
    clock = Clock()
    caller = Caller("a", Rights(concurrency=2), clock)

    def wait() -> float | None:
        with pytest.raises(RateLimited) as caught:
            caller.enter()
        return caught.value.retry_after

    first, second = caller.enter(), caller.enter()
    assert wait() == 1, "none has ended"
    clock.now += 8
    caller.leave(first, answered=True)
    caller.leave(caller.enter(), answered=False)  # refused: says nothing about how long they take
    clock.now += 2
    caller.leave(second, answered=True)
    mean = 8 + 0.3 * (10 - 8)
    oldest = caller.enter()
    clock.now += 3
    caller.enter()
    assert wait() == pytest.approx(mean - 3)
    clock.now += 1000
    assert wait() == pytest.approx(mean / 2), "both are overdue"
    caller.leave(oldest, answered=True)
    caller.enter()
    assert wait() == 60, "however long the last one took"


def test_a_second_run_of_one_call_is_no_second_request() -> None:
    caller = Caller("a", Rights(requests_per_minute=2))
    call = RequestContext(caller)
    for _ in range(3):
        with Answering(call):
            pass
    assert caller.remaining() == {"requests": (2, 1)}


def test_a_call_counts_for_its_caller() -> None:
    caller = Caller("a", Rights(tokens_per_minute=100))
    with calling(RequestContext(caller)) as call:
        current_request().count(30, 0)
        assert call.first_token is None
        current_request().count(0, 12)
    assert (call.prompt_tokens, call.generated_tokens) == (30, 12)
    assert call.first_token is not None
    assert caller.remaining() == {"tokens": (100, 58)}


def test_outside_of_a_request_nothing_is_granted() -> None:
    with pytest.raises(RuntimeError, match="no request context"):
        Context().run(current_request)
    with as_system() as context:
        assert context.caller.rights.admin


def test_a_limit_that_stays_keeps_what_was_used() -> None:
    caller = Caller("a", Rights(requests_per_minute=2, concurrency=1))
    caller.ask()
    caller.allow(Rights(requests_per_minute=2, tokens_per_minute=5))
    assert caller.remaining() == {"requests": (2, 1), "tokens": (5, 5)}
    caller.allow(Rights(requests_per_minute=9))
    assert caller.remaining() == {"requests": (9, 9)}


@pytest.mark.parametrize(
    ("models", "name", "may"),
    [
        (None, "any", True),
        ((), "any", False),
        (("a", "qwen*"), "qwen3", True),
        (("a", "qwen*"), "Qwen3", False),
        (("a",), "ab", False),
    ],
)
def test_models(models: tuple[str, ...] | None, name: str, may: bool) -> None:
    assert Caller("x", Rights(models=models)).may_use(name) is may


def test_who_may_change_what_is_served() -> None:
    ANYONE.require_admin()
    for caller in (NOBODY, Caller("a", Rights())):
        with pytest.raises(PermissionDenied, match="admin = true"):
            caller.require_admin()

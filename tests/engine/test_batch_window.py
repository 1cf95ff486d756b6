"""When the engine waits for more requests before a step, told on a clock of our own."""

from __future__ import annotations

from ovserve.engine.worker.calls import (
    BURST_PAUSE,
    BURST_SECONDS,
    FOLLOW_UP_SECONDS,
    LAST_PAUSE,
    MAX_SKIPPED,
    BatchWindow,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def batch_window(step_tokens: int = 256) -> tuple[BatchWindow, Clock]:
    clock = Clock()
    return BatchWindow(step_tokens, clock), clock


def test_a_burst_into_an_idle_engine_ends_with_a_silence() -> None:
    wait, _ = batch_window()
    wait.begin(idle=True, finished=0)
    wait.admitted(10)
    assert wait.pause(received=True) == BURST_PAUSE
    wait.admitted(10)
    assert wait.pause(received=True) == BURST_PAUSE
    assert wait.pause(received=False) == 0


def test_a_burst_without_an_end_is_cut() -> None:
    wait, clock = batch_window(10**6)
    wait.begin(idle=True, finished=0)
    wait.admitted(1)
    clock.now += BURST_SECONDS - BURST_PAUSE / 2
    assert 0 < wait.pause(received=True) < BURST_PAUSE
    clock.now += BURST_PAUSE
    wait.admitted(1)
    assert wait.pause(received=True) == 0


def test_a_full_step_waits_for_nobody() -> None:
    wait, _ = batch_window(256)
    wait.begin(idle=True, finished=0)
    wait.admitted(128)
    assert wait.pause(received=True) > 0
    wait.admitted(128)
    assert wait.pause(received=True) == 0


def test_the_last_request_that_the_server_has_waits_shorter() -> None:
    wait, _ = batch_window()
    wait.begin(idle=True, finished=0)
    wait.admitted(10, last=True)
    assert wait.pause(received=True) == LAST_PAUSE
    wait.admitted(10)  # the server had not seen it
    assert wait.pause(received=True) == BURST_PAUSE
    wait.admitted(10, last=True)
    assert wait.pause(received=True) == LAST_PAUSE
    assert wait.pause(received=False) == 0


def test_a_step_with_no_room_for_those_that_wait_is_made_at_once() -> None:
    wait, _ = batch_window()
    wait.begin(idle=True, finished=0)
    wait.admitted(10)
    assert wait.pause(received=True, full=True) == 0


def test_words_that_admit_nothing_hold_no_step() -> None:
    wait, _ = batch_window()
    wait.begin(idle=True, finished=0)
    assert wait.pause(received=True) == 0


def test_a_busy_engine_does_not_wait_for_what_may_come() -> None:
    wait, _ = batch_window()
    wait.begin(idle=False, finished=0)
    wait.admitted(10)
    assert wait.pause(received=True) == 0


def test_the_next_request_of_a_finished_one_is_awaited() -> None:
    wait, clock = batch_window()
    wait.begin(idle=False, finished=2)
    assert wait.pause(received=False) == FOLLOW_UP_SECONDS
    clock.now += 0.002
    wait.admitted(10)
    assert 0 < wait.pause(received=True) < FOLLOW_UP_SECONDS
    wait.admitted(10)
    assert wait.pause(received=True) == 0, "both have come"


def waits(wait: BatchWindow, clock: Clock, occasions: int, *, rewarded: bool) -> int:
    """How many of so many finished requests were waited for."""
    count = 0
    for _ in range(occasions):
        wait.begin(idle=False, finished=1)
        if wait.pause(received=False):
            count += 1
            if rewarded:
                wait.admitted(1)
            clock.now += FOLLOW_UP_SECONDS
            assert wait.pause(received=rewarded) == 0
    return count


def test_waits_in_vain_become_rare_and_a_reward_brings_them_back() -> None:
    wait, clock = batch_window()
    assert waits(wait, clock, 1000, rewarded=False) <= 6 + 1000 // MAX_SKIPPED
    waits(wait, clock, MAX_SKIPPED + 1, rewarded=True)
    assert waits(wait, clock, 100, rewarded=True) == 100


def test_the_end_of_a_load_says_nothing_of_the_next() -> None:
    wait, clock = batch_window()
    waits(wait, clock, 20, rewarded=False)
    wait.begin(idle=True, finished=0)
    assert waits(wait, clock, 1, rewarded=True) == 1

"""Who is next when the engine is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ovserve.engine.admission.fair_queue import MAX_IDLE_CALLERS, FairQueue, Waiter

PATIENCE = 60.0


def waiter(caller: str, tokens: int, arrived: float = 0.0, user: str = "") -> Waiter:
    return Waiter(caller, tokens, 1, arrived, user)


def order(queue: FairQueue, now: float = 0.0) -> list[Waiter]:
    found = []
    while queue:
        found.append(queue.next(now))
        queue.take(found[-1], found[-1].tokens)
    return found


def test_a_flood_from_one_does_not_starve_another() -> None:
    queue = FairQueue(PATIENCE)
    flood = [waiter("flood", 10, arrived=i / 100) for i in range(100)]
    for one in flood:
        queue.add(one)
    late = [waiter("late", 10, arrived=1) for _ in range(3)]
    for one in late:
        queue.add(one)
    served = [w.caller for w in order(queue, now=1)]
    assert served[:6].count("late") == 3, "they take turns until the late one is done"


def test_callers_share_tokens_not_requests() -> None:
    queue = FairQueue(PATIENCE)
    for _ in range(10):
        queue.add(waiter("large", 1000))
        queue.add(waiter("small", 100))
    served = [w.caller for w in order(queue)]
    assert served[:12].count("small") == 10, "ten small ones weigh as much as one large"


def test_shares_follow_the_weights() -> None:
    queue = FairQueue(PATIENCE)
    for _ in range(30):
        queue.add(waiter("one", 10))
        heavy = waiter("three", 10)
        heavy.weight = 3.0
        queue.add(heavy)
    served = [w.caller for w in order(queue)][:20]
    assert served.count("three") == 15


def test_the_short_go_before_the_long_of_the_same_caller() -> None:
    queue = FairQueue(PATIENCE)
    long, title = waiter("", 30_000, arrived=0), waiter("", 20, arrived=5)
    queue.add(long)
    queue.add(title)
    assert order(queue, now=5) == [title, long]


def test_users_of_one_caller_share_too() -> None:
    queue = FairQueue(PATIENCE)
    for i in range(50):
        queue.add(waiter("ui", 10, arrived=i / 100, user="flood"))
    for _ in range(2):
        queue.add(waiter("ui", 10, arrived=1, user="late"))
    assert [w.user for w in order(queue, now=1)][:4].count("late") == 2


def test_a_caller_gains_nothing_by_inventing_users() -> None:
    queue = FairQueue(PATIENCE)
    for i in range(50):
        queue.add(waiter("inventor", 10, user=str(i)))
    for _ in range(50):
        queue.add(waiter("plain", 10))
    assert [w.caller for w in order(queue)][:20].count("plain") == 10


def test_users_who_are_gone_are_forgotten() -> None:
    queue = FairQueue(PATIENCE)
    queue.add(waiter("other", 1))
    for i in range(2 * MAX_IDLE_CALLERS):
        one = waiter("inventor", 1, user=str(i))
        queue.add(one)
        queue.remove(one)
    assert len(queue._served) <= MAX_IDLE_CALLERS + 3


def test_nobody_waits_for_ever() -> None:
    """After half of the time it may wait, the size of a prompt counts no more."""
    queue = FairQueue(PATIENCE)
    long = waiter("", 30_000, arrived=0)
    queue.add(long)
    queue.add(waiter("", 1, arrived=29))
    assert queue.next(29.9) is not long
    assert queue.next(30.1) is long


def test_who_comes_later_has_no_past_to_catch_up() -> None:
    queue = FairQueue(PATIENCE)
    for _ in range(20):
        queue.add(waiter("early", 100))
    for _ in range(10):
        queue.take(queue.next(0), 100)
    for _ in range(20):
        queue.add(waiter("late", 100))
    first = [queue_next(queue) for _ in range(10)]
    assert first.count("early") == 5


def queue_next(queue: FairQueue) -> str:
    one = queue.next(0)
    queue.take(one, one.tokens)
    return one.caller


def test_leaving_twice_is_leaving_once() -> None:
    queue = FairQueue(PATIENCE)
    one, other = waiter("a", 5), waiter("a", 7)
    queue.add(one)
    queue.add(other)
    queue.remove(one)
    queue.remove(one)
    assert (len(queue), queue.tokens) == (1, 7)
    assert queue.next(0) is other


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000), st.floats(0, 100)), max_size=40))
def test_everybody_gets_one_turn(asked: list[tuple[str, int, float]]) -> None:
    queue = FairQueue(PATIENCE)
    waiting = [waiter(*one) for one in asked]
    for one in waiting:
        queue.add(one)
    assert queue.tokens == sum(w.tokens for w in waiting)
    served = order(queue, now=100)
    assert sorted(map(id, served)) == sorted(map(id, waiting))
    assert (len(queue), queue.tokens) == (0, 0)


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=30),
    st.lists(st.integers(1, 500), min_size=1, max_size=30),
)
def test_two_callers_are_never_further_apart_than_one_request(mine: list[int], yours: list[int]) -> None:
    """While both wait, what each was given differs by no more than the largest request."""
    queue = FairQueue(PATIENCE)
    for caller, sizes in (("mine", mine), ("yours", yours)):
        for size in sizes:
            queue.add(waiter(caller, size))
    given_tokens = {"mine": 0, "yours": 0}
    left = {"mine": len(mine), "yours": len(yours)}
    while all(left.values()):
        one = queue.next(0)
        queue.take(one, one.tokens)
        given_tokens[one.caller] += one.tokens
        left[one.caller] -= 1
        assert abs(given_tokens["mine"] - given_tokens["yours"]) <= max(mine + yours)


def test_an_empty_queue_has_no_next() -> None:
    assert FairQueue(PATIENCE).next(0) is None


def test_a_full_queue_is_shared_among_callers() -> None:
    queue = FairQueue(PATIENCE)
    flood = [waiter("flood", 10, arrived=i, user=str(i % 2)) for i in range(4)]
    for one in flood:
        queue.add(one)
    assert queue.eviction_candidate(waiter("flood", 10), by_tokens=False) is None
    for left in (3, 2):
        late = waiter("late", 10, arrived=9)
        assert queue.eviction_candidate(late, by_tokens=False) is flood[left]
        queue.remove(flood[left])
        queue.add(late)
    assert queue.eviction_candidate(waiter("late", 10), by_tokens=False) is None, "two each"
    assert queue.eviction_candidate(waiter("third", 10), by_tokens=False) is not None


def test_room_for_tokens_is_shared_by_tokens() -> None:
    queue = FairQueue(PATIENCE)
    large = waiter("large", 900)
    queue.add(large)
    for _ in range(5):
        queue.add(waiter("many", 10))
    assert queue.eviction_candidate(waiter("new", 100), by_tokens=True) is large
    assert queue.eviction_candidate(waiter("new", 900), by_tokens=True) is None
    assert FairQueue(PATIENCE).eviction_candidate(waiter("new", 1), by_tokens=True) is None

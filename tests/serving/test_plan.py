"""The table of `ovserve.serving.plan`, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.serving.fingerprint import Fingerprint
from ovserve.serving.plan import Current, Desired, Plan, diff
from ovserve.serving.settings import ServableSpec

SPEC = ServableSpec.of_directory("m", Path("/m"))
OLD: Desired = (SPEC, Fingerprint("old", (("/model", "a"),)))
NEW: Desired = (SPEC, Fingerprint("new", (("/model", "a"),)))
OTHER_MODEL: Desired = (SPEC, Fingerprint("old", (("/model", "b"),)))
ELSEWHERE: Desired = (ServableSpec.of_directory("m", Path("/n")), OLD[1])
BROKEN: Desired = (SPEC, Fingerprint("broken"))
BROKEN_SEEN: Desired = (SPEC, Fingerprint("broken", (("/model", "a"),)))  # with the models known from OLD

LOAD, REMOVE, FORGIVE, NOTHING = Plan(load=("m",)), Plan(remove=("m",)), Plan(clear_error=("m",)), Plan()
SERVED, FAILED_ONLY, FAILED_CHANGE = Current(OLD, OLD), Current(None, BROKEN), Current(OLD, BROKEN)


@pytest.mark.parametrize(
    ("known", "wanted", "unasked", "asked"),
    [
        (None, OLD, LOAD, LOAD),
        (Current(), OLD, LOAD, LOAD),
        (Current(unloaded=True), OLD, NOTHING, LOAD),
        (SERVED, None, REMOVE, REMOVE),
        (FAILED_ONLY, None, REMOVE, REMOVE),
        (Current(unloaded=True), None, REMOVE, REMOVE),
        (Current(), None, NOTHING, NOTHING),
        (SERVED, OLD, NOTHING, NOTHING),
        (SERVED, NEW, LOAD, LOAD),
        (SERVED, OTHER_MODEL, LOAD, LOAD),
        (SERVED, ELSEWHERE, LOAD, LOAD),
        (FAILED_CHANGE, OLD, FORGIVE, FORGIVE),
        (FAILED_CHANGE, BROKEN_SEEN, NOTHING, LOAD),
        (FAILED_CHANGE, NEW, LOAD, LOAD),
        (FAILED_ONLY, BROKEN, NOTHING, LOAD),
        (FAILED_ONLY, OLD, LOAD, LOAD),
    ],
)
def test_every_row(known: Current | None, wanted: Desired | None, unasked: Plan, asked: Plan) -> None:
    now = {} if known is None else {"m": known}
    want = {} if wanted is None else {"m": wanted}
    assert diff(now, want, retry=False) == unasked
    assert diff(now, want, retry=True) == asked


def test_others_are_left_alone() -> None:
    other = (ServableSpec.of_directory("o", Path("/o")), Fingerprint("x"))
    plan = diff({"m": SERVED, "o": Current(other, other)}, {"o": other, "m": NEW}, retry=True)
    assert plan == LOAD

"""The table of `ovserve.serving.plan`, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.serving.fingerprint import Fingerprint
from ovserve.serving.plan import Known, Plan, Wanted, diff
from ovserve.serving.spec import ServableSpec

SPEC = ServableSpec.of_directory("m", Path("/m"))
OLD: Wanted = (SPEC, Fingerprint("old", (("/model", "a"),)))
NEW: Wanted = (SPEC, Fingerprint("new", (("/model", "a"),)))
OTHER_MODEL: Wanted = (SPEC, Fingerprint("old", (("/model", "b"),)))
ELSEWHERE: Wanted = (ServableSpec.of_directory("m", Path("/n")), OLD[1])
BROKEN: Wanted = (SPEC, Fingerprint("broken"))
BROKEN_SEEN: Wanted = (SPEC, Fingerprint("broken", (("/model", "a"),)))  # with the models known from OLD

LOAD, REMOVE, FORGIVE, NOTHING = Plan(load=("m",)), Plan(remove=("m",)), Plan(forgive=("m",)), Plan()
SERVED, FAILED_ONLY, FAILED_CHANGE = Known(OLD, OLD), Known(None, BROKEN), Known(OLD, BROKEN)


@pytest.mark.parametrize(
    ("known", "wanted", "unasked", "asked"),
    [
        (None, OLD, LOAD, LOAD),
        (Known(), OLD, LOAD, LOAD),
        (Known(unloaded=True), OLD, NOTHING, LOAD),
        (SERVED, None, REMOVE, REMOVE),
        (FAILED_ONLY, None, REMOVE, REMOVE),
        (Known(unloaded=True), None, REMOVE, REMOVE),
        (Known(), None, NOTHING, NOTHING),
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
def test_every_row(known: Known | None, wanted: Wanted | None, unasked: Plan, asked: Plan) -> None:
    now = {} if known is None else {"m": known}
    want = {} if wanted is None else {"m": wanted}
    assert diff(now, want, retry=False) == unasked
    assert diff(now, want, retry=True) == asked


def test_others_are_left_alone() -> None:
    other = (ServableSpec.of_directory("o", Path("/o")), Fingerprint("x"))
    plan = diff({"m": SERVED, "o": Known(other, other)}, {"o": other, "m": NEW}, retry=True)
    assert plan == LOAD

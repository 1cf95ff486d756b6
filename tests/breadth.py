"""How many examples a property test tries: few in every run, many in `make fuzz`.

`make fuzz` chooses the profile that tests/conftest.py registers here. A property test says
`max_examples=examples(20)`.
"""

from __future__ import annotations

from hypothesis import settings

THOROUGH, USUAL = "thorough", "usual"
TIMES = 25


def register() -> None:
    settings.register_profile(THOROUGH, deadline=None)
    settings.register_profile(
        USUAL, deadline=None
    )  # a busy machine takes longer than the 200 ms of the default
    settings.load_profile(USUAL)


def examples(few: int) -> int:
    """`few`, or many times as many. Called while tests are collected, when the profile is chosen."""
    return few * TIMES if settings.get_current_profile_name() == THOROUGH else few

"""How many examples a property test tries: few in every run, many in `make fuzz`.

`make fuzz` chooses the profile that tests/conftest.py registers here. A property test says
`max_examples=examples(20)`.
"""

from __future__ import annotations

from hypothesis import settings

THOROUGH = "thorough"
TIMES = 25


def register() -> None:
    settings.register_profile(THOROUGH, deadline=None)


def examples(few: int) -> int:
    """`few`, or many times as many. Called while tests are collected, when the profile is chosen."""
    return few * TIMES if settings.get_current_profile_name() == THOROUGH else few

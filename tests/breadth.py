"""How many examples a property test tries: few in every run, many in `make fuzz`.

`make fuzz` chooses the profile that tests/conftest.py registers here. A property test tries EXAMPLES, or says
`max_examples=examples(15)`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

THOROUGH, USUAL = "thorough", "usual"
TIMES = 60
EXAMPLES = 25


def register() -> None:
    # A busy machine takes longer than the default deadline of 200 ms, and than drawing may take.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        THOROUGH, deadline=None, suppress_health_check=slow, max_examples=EXAMPLES * TIMES
    )
    settings.register_profile(USUAL, deadline=None, suppress_health_check=slow, max_examples=EXAMPLES)
    settings.load_profile(USUAL)


def examples(few: int) -> int:
    """`few`, or many times as many. Called while tests are collected, when the profile is chosen."""
    return few * TIMES if settings.get_current_profile_name() == THOROUGH else few

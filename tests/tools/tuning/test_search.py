"""Who wins, for which reason, after how many rounds; against a table of speeds instead of engines."""

from __future__ import annotations

import time
from collections import ChainMap
from typing import Any

from ovserve.tools.tuning.graph_file import Choices, label
from ovserve.tools.tuning.search import Search, TuneResult
from tests.tools.tuning.conftest import SPEC, Table


def dimension(name: str, *values: object) -> dict[str, Choices]:
    return {name: [{name: value} for value in values]}  # type: ignore[dict-item]


async def search(
    table: Table, *dimensions: dict[str, Choices], seconds: float = 3600, other_text: bool = False
) -> TuneResult:
    told: list[float] = []
    found = await Search(
        table,
        SPEC,
        began=time.monotonic(),
        seconds=seconds,
        other_text=other_text,
        progress=lambda part, text: told.append(part),
    ).run(dict(ChainMap(*reversed(dimensions))))
    assert told == sorted(told)
    return found


def outcomes(found: TuneResult) -> dict[str, str]:
    return {label(trial.choice): trial.outcome for trial in found.trials}


async def test_gains_of_several_dimensions_add_up() -> None:
    table = Table({"A=1": 1.2, "A=2": 1.5, "B=1": 0.5, "B=2": 1.1})
    found = await search(table, dimension("A", 1, 2, 3), dimension("B", 1, 2))
    assert dict(found.options) == {"A": 2, "B": 2}
    assert outcomes(found) == {
        "A=1": "taken",
        "A=2": "taken",
        "A=3": "slower",
        "B=1": "slower",
        "B=2": "taken",
    }
    assert found.final is not None
    assert round(found.final.median, 2) == 1.65
    assert found.trials[1].baseline == {"A": 1}


async def test_losers_leave_early_and_winners_must_prove_it() -> None:
    found = await search(Table({"A=1": 0.8, "A=3": 1.3}), dimension("A", 1, 2, 3))
    assert [len(trial.match.pairs) for trial in found.trials] == [2, 3, 5]


async def test_a_machine_that_slows_down_is_no_ones_fault() -> None:
    """Every round is 0.5 % slower than the one before: with turns kept, nobody gains by that."""
    table = Table({"A=1": 1.0}, drift=lambda number: 0.995**number)
    found = await search(table, dimension("A", 1))
    assert not found.options
    assert outcomes(found) == {"A=1": "no gain"}
    assert [r for r in found.control.ratios if r < 1]
    assert [r for r in found.control.ratios if r > 1], "the order changes from pair to pair"


async def test_a_gain_within_the_noise_is_none() -> None:
    noisy = Table({"A=1": 1.05}, drift=lambda number: 1.08 if number % 4 == 1 else 1.0)
    found = await search(noisy, dimension("A", 1))
    assert found.noise > 0.05
    assert not found.options
    quiet = await search(Table({"A=1": 1.05}), dimension("A", 1))
    assert dict(quiet.options) == {"A": 1}


async def test_other_text_needs_permission_and_is_reported_either_way() -> None:
    texts = {"A=1": "as it is now"}
    found = await search(Table({"A=1": 1.4}, texts=texts), dimension("A", 1))
    assert outcomes(found) == {"A=1": "other text"}
    assert not found.options
    assert found.trials[0].match.median > 1.3, "what it would gain is told"
    (parted,) = [trial.difference for trial in found.trials]
    assert parted is not None
    assert (parted.answers, parted.compared) == (1, 2)
    assert (parted.position, parted.was, parted.now) == (6, "was", "is now")
    found = await search(Table({"A=1": 1.4}, texts=texts), dimension("A", 1), other_text=True)
    assert outcomes(found) == {"A=1": "taken"}
    assert found.difference == parted


async def test_who_cannot_load_is_told_in_the_librarys_words_and_passed_over() -> None:
    table = Table({"A=2": 1.3}, broken=frozenset({"A=1"}))
    found = await search(table, dimension("A", 1, 2))
    assert found.trials[0].outcome == "failed"
    assert found.trials[0].message == "the library says no to A=1"
    assert dict(found.options) == {"A": 2}


async def test_who_lost_by_little_meets_the_new_holder() -> None:
    """A=1 alone gains nothing, but B=1 won since: it has a second chance, and B's other values have none."""
    found = await search(Table({"B=1": 1.2}), dimension("A", 1), dimension("B", 2, 1))
    assert [(label(t.choice), dict(t.baseline)) for t in found.trials] == [
        ("A=1", {}),
        ("B=2", {}),
        ("B=1", {}),
        ("A=1", {"B": 1}),
    ]


async def test_a_used_up_budget_leaves_the_rest_untried() -> None:
    table = Table({"A=1": 1.3})
    table.load_seconds = 1000.0
    found = await search(table, dimension("A", 1, 2), seconds=1500)
    assert outcomes(found) == {"A=1": "no time", "A=2": "no time"}
    assert not found.options
    assert found.final is None


async def test_gains_that_vanish_at_the_end_are_not_written() -> None:
    """The winner was fast only while it was tried."""
    table = Table({})
    table_rounds = table.rounds
    plain = table._round

    def tricky(spec: Any) -> Any:
        made = plain(spec)
        lucky = "A" in spec.properties and len(table_rounds) < 17
        return {
            c: type(s)(s.tokens_per_second * (1.5 if lucky else 1), s.first_token) for c, s in made.items()
        }

    table._round = tricky  # type: ignore[method-assign]
    found = await search(table, dimension("A", 1))
    assert outcomes(found) == {"A=1": "taken"}
    assert not found.options
    assert found.final is not None

"""The line of progress of `ovserve batch` fits the terminal, whatever its width."""

from __future__ import annotations

import pytest

from ovserve.cli.batch import _with_bar

TEXT = "20 of 40 lines, 1 failed"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (100, f"{'━' * 15}{'╌' * 15} {TEXT}"),
        (36, f"{'━' * 5}{'╌' * 5} {TEXT}"),
        (30, TEXT),
        (11, "20 of 40 l"),
    ],
)
def test_the_bar_takes_what_the_text_leaves(
    monkeypatch: pytest.MonkeyPatch, columns: int, expected: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert _with_bar(TEXT, 0.5) == expected

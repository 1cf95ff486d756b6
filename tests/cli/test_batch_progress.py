"""The line of progress of `ovserve batch` fits the terminal, whatever its width."""

from __future__ import annotations

import pytest

from ovserve.cli.batch import _with_bar
from ovserve.cli.commands import build_parser
from ovserve.pull.packaged import DEFAULT_MODEL

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


def test_without_a_model_it_is_the_default_one() -> None:
    """A server under the name of the first line needs to be told which model that is."""
    arguments = build_parser(["batch"]).parse_args(["batch", "in.jsonl", "-o", "out.jsonl"])
    assert arguments.model == DEFAULT_MODEL

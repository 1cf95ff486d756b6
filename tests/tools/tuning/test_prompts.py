"""The prompts of a tuning run, and where texts part."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.errors import InvalidArgument
from ovserve.tools.tuning.prompts import Prompts, read
from ovserve.tools.tuning.search import difference


def test_the_mix_never_repeats_and_is_the_same_in_every_run() -> None:
    first, second = Prompts(), Prompts()
    taken = first.take(10) + first.take(90)
    assert len(set(taken)) == 100
    assert len({prompt[:4] for prompt in taken}) == 100, "no two begin alike"
    assert second.take(100) == taken


def test_the_operators_own_are_asked_in_turn() -> None:
    prompts = Prompts(("a", "b", "c"))
    assert prompts.take(2) + prompts.take(3) == ["a", "b", "c", "a", "b"]


def test_a_file_has_text_or_json(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text('Say hi\n\n{"prompt": "two\\nlines"}\n')
    assert read(file) == ["Say hi", "two\nlines"]
    for bad, says in (
        ("", "has no prompt"),
        ('ok\n{"text": 1}', ":2: expected text, or"),
        ('{"prompt": 3}', "got 3"),
    ):
        file.write_text(bad)
        with pytest.raises(InvalidArgument, match=says):
            read(file)


def test_where_texts_part() -> None:
    assert difference(["a", "b"], ["a", "b"]) is None
    found = difference(["same", "abcd", "xyz"], ["same", "abXd", "xyz and more"])
    assert found is not None
    assert (found.answers, found.compared, found.position, found.was, found.now) == (2, 3, 2, "cd", "Xd")
    shorter = difference(["abc"], ["ab"])
    assert shorter is not None
    assert (shorter.position, shorter.was, shorter.now) == (2, "c", "")

"""Calculator classes whose requests would all fail are load errors: tests of the overrides in ovserve/graph/options.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.graph.options import awaited

FILE = """\
import re
from dataclasses import dataclass

import msgspec

from ovserve.calculators.library import AnswerCheck, Cascade, PromptCheck, PromptInsertion, RequestSwitch, TextMap
from ovserve.graph import Calculator, Input, calculator

@calculator("OwnCalculator")
"""
FAULTS = {
    "class Own(PromptCheck):\n    def objektion(self, cc, text): return ''": r"Own has to define "
    r"objection\(self, cc: Context, text: str\) -> .*; objektion\(\) is not one that the server calls",
    "class Own(PromptInsertion):\n    pass": r"Own has to define insert\(self, cc: Context, question: str\)",
    "class Own(RequestSwitch):\n    def choose(self, question): return 0": r"Own.choose is called with "
    r"\(self, cc, value\), and takes \(self, question\)",
    "class Own(TextMap):\n    async def replace(self, match): return ''": "Own.replace is not awaited: write def",
    "class Own(AnswerCheck):\n    def accept(self, cc, answer): return True\n"
    "    def reject(self, cc, request, answer): pass": "Own.reject is awaited: write async def instead of def",
    "class Own(Cascade):\n    message = 5\n    def unsure(self, cc, answer): return False": "Own.message: "
    "expected str, got 5",
    "class Own(TextMap):\n    window = '9'\n    def replace(self, match): return ''": "Own.window: expected int, "
    "got '9'",
    "class Own(Calculator):\n    given = Input('IN')\n    def proces(self, cc): pass": r"Own has to define process\("
    r".*; proces\(\) is not",
    "class Own(Calculator):\n    @classmethod\n    def load(cls): pass\n    def process(self, cc): pass": "Own.load is "
    r"called with \(cls, lc\), and takes \(cls\)",
    "class Own(Calculator):\n    options_type = dataclass(type('Words', (), {}))\n"
    "    def process(self, cc): pass": "Own.options_type: Words is not a class made of msgspec.Struct",
    "class Own(Calculator):\n    options_type = msgspec.Struct(\n": "calculators.py:11: SyntaxError",
}


@pytest.mark.parametrize(("source", "message"), FAULTS.items(), ids=range(len(FAULTS)))
def test_a_class_that_cannot_work_is_a_load_error(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "calculators.py").write_text(FILE + source + "\n")
    with pytest.raises(LoadError, match=message) as raised:
        Registry(MODULES).for_directory(tmp_path)
    assert raised.value.line >= 9


@pytest.mark.parametrize("word", ["def", "async def"])
@pytest.mark.parametrize(
    ("base", "head"),
    [
        ("PromptCheck", "objection(self, cc, text)"),
        ("PromptInsertion", "insert(self, cc, question)"),
        ("RequestSwitch", "choose(self, cc, question)"),
        ("AnswerCheck", "accept(self, cc, answer)"),
        ("Cascade", "unsure(self, cc, answer)"),
    ],
)
def test_methods_of_authors_may_be_coroutines_or_not(word: str, base: str, head: str, tmp_path: Path) -> None:
    (tmp_path / "calculators.py").write_text(f"{FILE}class Own({base}):\n    {word} {head}: return ''\n")
    assert "OwnCalculator" in Registry(MODULES).for_directory(tmp_path)


async def test_a_result_is_awaited_if_it_has_to_be() -> None:
    async def later() -> int:
        return 2

    assert (await awaited(1), await awaited(later())) == (1, 2)


def test_two_calculators_of_one_name_are_named_with_their_files(tmp_path: Path) -> None:
    source = FILE.replace("Own", "Cascade") + "class Mine(Calculator):\n    pass\n"
    (tmp_path / "calculators.py").write_text(source)
    with pytest.raises(
        LoadError, match=r"defined twice: by LimitCascade in ovserve\..* and by Mine in .*/calc"
    ):
        Registry(MODULES).for_directory(tmp_path)

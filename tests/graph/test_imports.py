"""`import helper` in calculators.py: found beside it, apart from other graphs, new after an edit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.graph.registry import Registry as Known
from ovserve.graph.registry import author_files
from ovserve.serving.fingerprint import Fingerprints
from ovserve.serving.settings import ServableSpec

CALCULATORS = """
import json
import helper, tools.words
from tools import numbers
from tools.words import WORD
from ovserve.graph import Calculator, calculator

@calculator("Mine")
class Mine(Calculator):
    said = (helper.VALUE, tools.words.WORD, WORD, numbers.NUMBER, json.dumps(1))

    @staticmethod
    def later():
        import late
        return late.VALUE
"""
FILES = {
    "calculators.py": CALCULATORS,
    "helper.py": "import shared\nVALUE = shared.VALUE",
    "shared.py": "VALUE = 'one'",
    "late.py": "VALUE = 'late'",
    "tools/__init__.py": "",
    "tools/words.py": "from . import numbers\nfrom .numbers import NUMBER as N\nimport shared\nWORD = f'{shared.VALUE} {N} {numbers.NUMBER}'",
    "tools/numbers.py": "NUMBER = 1",
    "test_calculators.py": "import calculators",
    "notes/not_a_package.py": "1/0",
}


def write(directory: Path, **changed: str) -> Path:
    for name, text in (FILES | changed).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    (directory / "graph.pbtxt").write_text("")
    return directory


def mine(directory: Path) -> type:
    return Registry().for_directory(directory)["Mine"]


def test_helpers_and_packages_are_imported(tmp_path: Path) -> None:
    before = set(sys.modules)
    cls = mine(write(tmp_path))
    assert cls.said == ("one", "one 1 1", "one 1 1", 1, "1")  # type: ignore[attr-defined]
    assert cls.later() == "late"  # type: ignore[attr-defined]
    new = set(sys.modules) - before
    assert not {"helper", "shared", "tools", "late"} & new
    assert not list(tmp_path.rglob("__pycache__")), "a graph's directory is not written to"


def test_two_graphs_do_not_share_a_helper_and_an_edit_is_seen(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two", **{"shared.py": "VALUE = 'two'"})
    assert mine(one).said[0] == "one"  # type: ignore[attr-defined]
    assert mine(two).said[0] == "two"  # type: ignore[attr-defined]
    old = mine(one)
    stat = (one / "shared.py").stat()
    (one / "shared.py").write_text(
        "VALUE = 'new'"
    )  # the size and the time of before, as bytecode caches compare
    os.utime(one / "shared.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (one / "late.py").write_text("VALUE = 'newer'")
    assert mine(one).said[0] == "new"  # type: ignore[attr-defined]
    assert old.later() == "late", "a loaded graph keeps the code that it was loaded with"  # type: ignore[attr-defined]


def test_helpers_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    spec = ServableSpec.of_directory("x", write(tmp_path))
    names = [path.relative_to(tmp_path).as_posix() for path in author_files(tmp_path)]
    assert names == [
        "calculators.py",
        "helper.py",
        "late.py",
        "shared.py",
        "tools/__init__.py",
        "tools/numbers.py",
        "tools/words.py",
    ]
    prints = Fingerprints()
    first = prints.of(spec, ())
    (tmp_path / "test_calculators.py").write_text("changed")
    assert prints.of(spec, ()) == first
    for change in (
        lambda: (tmp_path / "tools/words.py").write_text("WORD = 2"),
        (tmp_path / "late.py").unlink,
    ):
        change()
        assert prints.of(spec, ()) != first
        first = prints.of(spec, ())


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("helper.py", "VALUE = 1\nraise OSError('no index')", "helper.py:2: OSError: no index"),
        ("helper.py", "VALUE = = 1", "helper.py:1: SyntaxError: invalid syntax"),
        ("tools/words.py", "from . import nothing", "tools/words.py:1: ImportError: cannot import name 'nothing'"),
        ("calculators.py", "\nimport nothing_here", "calculators.py:2: ModuleNotFoundError: No module named 'nothing_here'"),
    ],
)  # fmt: skip
def test_a_fault_names_the_helpers_line(tmp_path: Path, file: str, text: str, says: str) -> None:
    write(tmp_path, **{file: text})
    known = set(sys.modules)
    with pytest.raises(LoadError) as error:
        Known().for_directory(tmp_path)
    assert says in str(error.value)
    left = {name for name in set(sys.modules) - known if name.startswith("ovserve_graph_")}
    assert not left, "the next load begins anew"

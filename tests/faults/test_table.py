"""The list of faults in docs/reliability.md and these tests name the same faults."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

ROW = re.compile(r"\*\*([^*]+)\*\*")
SECTION = "## Faults"
OTHERS = {  # no faults: how a row's other side behaves
    "test_a_reader_that_is_slow_but_reads_is_served",
    "test_the_limits_in_force_are_the_options",
    "test_the_table_and_the_tests_agree",
    "test_engine_kill_9_under_load",
    "test_a_refused_client_comes_again_within_the_time_of_the_queue",
    "test_the_limits_of_texts_are_the_options",
    "test_how_a_kill_by_the_kernel_is_told",
}


def rows() -> list[str]:
    """The test of each fault: "engine sigstop" is `test_engine_sigstop`."""
    text = (ROOT / "docs/reliability.md").read_text()
    section = text.split(SECTION, 1)[1].split("\n## ", 1)[0]
    return ["test_" + re.sub(r"\W+", "_", fault.lower()).strip("_") for fault in ROW.findall(section)]


def fault_tests() -> set[str]:
    found = set()
    for path in (ROOT / "tests/faults").glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(node.name)
    return found


def test_the_table_and_the_tests_agree() -> None:
    assert sorted(rows()) == sorted(fault_tests() - OTHERS)

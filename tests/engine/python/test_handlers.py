"""Handlers in a process: how their files are loaded, and what ends a call that takes too long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from ovserve.errors import LoadError
from ovserve.kinds.python.spec import PythonNode
from ovserve.kinds.python.worker.engine import EXIT_STUCK, CallTimeout, Deadlines, Handler, Modules

CLASS = "class OvmsPythonModel:\n    def execute(self, inputs):\n        return []\n"


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """The process of a graph has them for itself."""
    path, modules = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        del sys.modules[name]


def load(path: Path, modules: Modules | None = None, name: str = "node") -> Handler:
    return Handler(PythonNode(name, str(path), ("a",), ("b",)), modules or Modules(), Deadlines())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import there_is_none\n" + CLASS, "handler.py cannot be imported: ModuleNotFoundError: No module named"),
        ("x = (\n", "handler.py cannot be imported: SyntaxError: '(' was never closed (handler.py:1)"),
        ("raise SystemExit(1)", "handler.py cannot be imported: SystemExit: 1"),
        ("class Other: pass", "defines no class OvmsPythonModel"),
        ("OvmsPythonModel = 1", "defines no class OvmsPythonModel"),
        ("class OvmsPythonModel: pass", "has no method execute"),
        (CLASS + "    def initialize(self, kwargs):\n        raise OSError('no\\nfile')", "initialize of handler.py failed: OSError: no"),
        (CLASS + "    def initialize(self):\n        pass", "initialize of handler.py failed: TypeError"),
        (CLASS + "    def __init__(self):\n        1 / 0", "initialize of handler.py failed: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_handler_that_does_not_load(
    tmp_path: Path, code: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "handler.py"
    path.write_text(code)
    with pytest.raises(LoadError) as caught:
        load(path)
    assert (caught.value.node, caught.value.field) == ("node", "handler_path")
    assert said in caught.value.reason
    if " failed" in said or "import" in said:
        assert "Traceback" in capsys.readouterr().err


def test_initialize_and_finalize_may_be_missing_or_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "handler.py"
    path.write_text(CLASS)
    load(path).finalize()
    path.write_text(CLASS + "    def finalize(self, more):\n        pass")
    load(path).finalize()
    assert "finalize failed: TypeError" in capsys.readouterr().err


def test_each_directory_has_its_own_modules(tmp_path: Path) -> None:
    """Also the lazy import of a handler's call, as long as no other directory has a module of the name."""
    code = "import helper\nclass OvmsPythonModel:\n    value = helper.VALUE\n    def execute(self, inputs):\n        import late_{0}\n        return [late_{0}.VALUE]\n"
    modules, found = Modules(), []
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "handler.py").write_text(code.format(name))
        for module in ("helper", f"late_{name}"):
            (tmp_path / name / f"{module}.py").write_text(f"VALUE = {name!r}")
        found.append(load(tmp_path / name / "handler.py", modules, name))
    assert [handler._model.value for handler in found] == ["x", "y"]
    assert [handler._model.execute([]) for handler in found] == [["x"], ["y"]]
    again = load(tmp_path / "x/handler.py", modules, "z")
    assert type(again._model) is type(found[0]._model), "one module for each file"
    assert again._model is not found[0]._model, "one instance for each node"


def test_the_names_of_modules_of_the_process_can_be_used(tmp_path: Path) -> None:
    for name in ("json", "numpy", "calls"):
        path = tmp_path / f"{name}.py"
        path.write_text(CLASS)
        load(path)
    import json

    assert json.loads("1") == 1


def test_stale_bytecode_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "handler.py"
    stamp = time.time_ns()
    for value in ("1", "2"):
        path.write_text(CLASS + f"    value = {value}\n")
        os.utime(path, ns=(stamp, stamp))
        assert load(path)._model.value == int(value)
        subprocess.run([sys.executable, "-m", "py_compile", str(path)], check=True)


def expired(deadlines: Deadlines, function: Callable[[], None]) -> list[str]:
    said: list[str] = []
    with pytest.raises(CallTimeout), deadlines.within(0.05, "node", lambda: said.append("expired")):
        function()
    return said


def test_a_call_in_python_is_stopped_at_its_deadline() -> None:
    deadlines = Deadlines()

    def spin() -> None:
        while True:
            pass

    assert expired(deadlines, spin) == ["expired"]
    with deadlines.within(30, "node", lambda: None):
        pass
    assert not deadlines._running
    for _ in range(200):  # one that ends just in time is not hit later
        try:
            with deadlines.within(0.001, "node", lambda: None):
                time.sleep(0.0009)
        except CallTimeout:
            pass
    sum(range(100_000))


def test_a_call_that_cannot_be_stopped_ends_the_process() -> None:
    code = """
        import time
        from ovserve.kinds.python.worker.engine import Deadlines
        with Deadlines(grace=0.2).within(0.1, "slow", lambda: None):
            time.sleep(60)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=230, check=False
    )
    assert done.returncode == EXIT_STUCK
    assert (
        "node 'slow': a call did not end 0.2 s after its timeout of 0.1 s; ending the process" in done.stderr
    )
    assert "Thread 0x" in done.stderr, "with the stacks of all threads"


def test_lines_have_the_name_of_their_node(tmp_path: Path) -> None:
    code = """
        import sys, threading
        from ovserve.kinds.python.worker.engine import mark_output, printing_as
        mark_output("graph")
        print("before")
        with printing_as("node"):
            print("one", end="")
            print(" line\\nand", "more", end="")
            sys.stderr.write("10%\\r20%\\r\\n")
            thread = threading.Thread(target=print, args=("from a thread",))
            thread.start()
            thread.join()
        print("\\ud800")
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=230, check=True
    )
    assert done.stdout.splitlines() == [
        "graph: before",
        "graph/node: one line",
        "graph: from a thread",
        "graph/node: and more",
        "graph: \\ud800",
    ]
    assert done.stderr.splitlines() == ["graph/node: 20%"]
    assert threading.active_count() >= 1

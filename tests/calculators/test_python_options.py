"""Graphs with Python nodes that are wrong at load, and what is said of them."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.serving.loader import check, check_graph
from ovserve.serving.settings import ServableSpec
from tests.inference.python_graphs import converter, graph, one, python, write

HANDLER = """
    class OvmsPythonModel:
        def execute(self, inputs):
            return inputs
"""
PY, OV = "OVMS_PY_TENSOR", "OVTENSOR"
ENDS = [f"{PY}:input"], [f"{PY}:output"]
LOOP = one(loop=True)
INFO = "input_stream_info: { tag_index: 'LOOPBACK:0', back_edge: true }"


def without_handler(text: str) -> str:
    start = text.index("input_stream_handler {")
    return text[:start] + text[text.index("node_options", start) :]


CONVERTED = graph([f"{PY}:input"], [f"{PY}:output"], converter(f"{OV}:x", f"{PY}:output", "y"))
WRONG: dict[str, tuple[str, str]] = {
    "no name": (one().replace('name: "node"', ""), "name: required for a Python node"),
    "two of one name": (
        graph(*ENDS, python("node", [f"{PY}:input"], [f"{PY}:a"]), python("node", [f"{PY}:a"], [f"{PY}:output"])),
        "'node' is the name of another Python node",
    ),
    "no options": (one()[: one().index("node_options")] + "}", "node_options: required"),
    "no handler": (one().replace("handler.py", ""), "handler_path: required"),
    "absent handler": (one().replace("handler.py", "none.py"), "none.py does not exist"),
    "no Python file": (one().replace("handler.py", "graph.pbtxt"), "expected the path of a .py file"),
    "no side packet": (one().replace('input_side_packet: "PYTHON_NODE_RESOURCES:py"', ""), "needs PYTHON_NODE_RESOURCES"),
    "timeout": (one(more="call_timeout: -1"), "call_timeout: expected seconds"),
    "no number": (one(more="call_timeout: nan"), "call_timeout: expected seconds"),
    "threads": (one(more="max_parallel_calls: 0"), "expected 1 to 256, got 0"),
    "interpreter": (one(more='interpreter: "none/python"'), "none/python is not a program"),
    "endpoints without HTTP": (one(more='endpoints: "a"'), "only a node with the input HTTP_REQUEST_PAYLOAD"),
    "no output": (graph([f"{PY}:input"], [f"{PY}:input"], python("node", [f"{PY}:input"], [])), "at least one"),
    "loopback on one side": (
        LOOP.replace('output_stream: "LOOPBACK:node_loop"', ""),
        "LOOPBACK is on one side of the node",
    ),
    "no back edge": (LOOP.replace("back_edge: true", "back_edge: false"), "cycle without a back edge"),
    "no stream info": (LOOP.replace(INFO, ""), "cycle without a back edge"),
    "another index": (LOOP.replace("'LOOPBACK:0'", "'LOOPBACK:1'"), "is not an input of this node"),
    "no sync set": (without_handler(LOOP), "shares a sync set"),
    "converter of one kind": (CONVERTED.replace(f"{OV}:x", f"{PY}:input"), "expected OVMS_PY_TENSOR on one side"),
    "converter without a name": (
        graph([f"{OV}:x"], ENDS[1], converter(f"{OV}:x", f"{PY}:output")),
        "tag_to_output_tensor_names: required with the key 'OVMS_PY_TENSOR'",
    ),
    "two requests": (
        graph(*ENDS, python("node", ["HTTP_REQUEST_PAYLOAD:0:input", "HTTP_REQUEST_PAYLOAD:1:b"], [f"{PY}:output"])),
        "HTTP_REQUEST_PAYLOAD may be given once",
    ),
    "endpoint": (
        graph(
            ["HTTP_REQUEST_PAYLOAD:input"], ["HTTP_RESPONSE_PAYLOAD:output"],
            python("node", ["HTTP_REQUEST_PAYLOAD:input"], ["HTTP_RESPONSE_PAYLOAD:output"], more='endpoints: "/a"'),
        ),
        "expected a path behind /v3/",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_graph_is_rejected_before_its_process_starts(tmp_path: Path, case: str) -> None:
    text, said = WRONG[case]
    write(tmp_path, text, handler=HANDLER)
    with pytest.raises(LoadError) as caught:
        check_graph(tmp_path, Registry(MODULES))
    assert said in str(caught.value)


def test_all_nodes_of_a_graph_share_one_process(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    text = graph(
        *ENDS,
        python("one", ["B:input", "A:input"], [f"{PY}:a"], more="max_parallel_calls: 4"),
        python("two", [f"{PY}:a"], [f"{PY}:output"], "sub/other.py", loop=True, more="call_timeout: 0.5"),
    )
    write(tmp_path, text, handler=HANDLER, **{"sub/other": HANDLER})
    checked = check(ServableSpec.of_directory("name", tmp_path), Registry(MODULES))
    (engine,) = checked.engines.values()
    spec = engine.spec
    assert (spec.kind, spec.servable, spec.threads) == ("python", "name", 4)  # type: ignore[attr-defined]
    assert [(n.name, n.inputs, n.call_timeout, bool(n.loopback)) for n in spec.nodes] == [  # type: ignore[attr-defined]
        ("one", ("input", "input"), 600.0, False),
        ("two", ("a",), 0.5, True),
    ]
    assert spec.model_paths == (str(tmp_path / "handler.py"), str(tmp_path / "sub/other.py"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class OvmsPythonModel:\n    def execute(self):\n  pass", "handler.py:3: unindent does not match"),
        ("class Other: pass", "defines no class OvmsPythonModel"),
        (
            "class OvmsPythonModel:\n    def run(self): pass",
            "handler.py:1: OvmsPythonModel has no method execute",
        ),
        ("from base import *", ""),
        ("from base import Model as OvmsPythonModel", ""),
        ("import base\nclass OvmsPythonModel(base.Model): pass", ""),
        ("class OvmsPythonModel:\n    execute = len", ""),
        ("x = '\0'", "handler.py:1: source code string cannot contain null bytes"),
    ],
)
def test_check_reads_a_handler_without_running_it(tmp_path: Path, code: str, said: str) -> None:
    write(tmp_path, one())
    (tmp_path / "handler.py").write_text(code)
    checked = check(ServableSpec.of_directory("name", tmp_path), Registry(MODULES))
    (engine,) = checked.engines.values()
    assert engine.kind.check is not None
    expected = pytest.raises(LoadError, match=re.escape(said)) if said else nullcontext()
    with expected:
        engine.kind.check(engine.node, engine.options)

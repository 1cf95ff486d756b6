"""Runs the Python handlers of an OVMS checkout, unchanged, with the outcomes that OVMS's tests expect.

    python -m scripts.acceptance_python OVMS_SRC

Served are graphs of one node around each test script and each functional handler; `acceptance.py` serves the
checkout's own graphs. OVMS's tests of `pyovms.Tensor` run against this server's. Exit code 1 if an outcome differs.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as triton

from tests.inference.conftest import Site, start_site
from tests.inference.python_graphs import graph, python

SCRIPTS = "src/test/mediapipe/python/scripts"
FUNCTIONAL = "tests/functional/data/python_custom_nodes"
TENSOR_TESTS = "src/python/binding/tests/test_ovms_py_tensor.py"
REMOVED = Path("/tmp/pythonNodeTestRemoveFile.txt")  # made and removed by one of the scripts
FAILED = "Error occurred during graph execution"
TYPES = ["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "FP32", "FP64"]

Check = Callable[[Site, str], str]  # of a served graph; returns what is wrong


def tensor(name: str, data: Any, datatype: str = "FP32", shape: list[int] | None = None) -> triton.InferInput:
    """Return an input: of numbers, or of the bytes of a text as they are."""
    if isinstance(data, str):
        given = triton.InferInput(name, [len(data)], "BYTES")
        given._raw_content = data.encode()
        return given
    array = np.asarray(data)
    given = triton.InferInput(name, list(array.shape) if shape is None else shape, datatype)
    given.set_data_from_numpy(array)
    return given


def ask(site: Site, model: str, *inputs: triton.InferInput) -> Any:
    with triton.InferenceServerClient(site.grpc) as client:
        return client.infer(model, list(inputs), client_timeout=30).get_response()


def numbers(wanted: list[float], *given: list[float]) -> Check:
    def check(site: Site, model: str) -> str:
        names = [f"input{i}" for i in range(1, len(given) + 1)] if len(given) > 1 else ["input"]
        inputs = [tensor(n, np.array(v, np.float32)) for n, v in zip(names, given, strict=True)]
        raw = ask(site, model, *inputs).raw_output_contents[0]
        found = np.frombuffer(raw, np.float32).tolist()
        return "" if found == wanted else f"{found} instead of {wanted}"

    return check


def fails(site: Site, model: str) -> str:
    try:
        answer = ask(site, model, tensor("input", np.array([1], np.float32)))
    except triton.InferenceServerException as error:
        return "" if FAILED in str(error) else str(error)
    return f"it answered {answer}"


def does_not_load(site: Site, model: str) -> str:
    state, message = site.states(model)["1"]
    return "" if "handler_path" in message and state == "LOADING" else f"{state} {message}"


def text(wanted: str) -> Check:
    def check(site: Site, model: str) -> str:
        raw = bytes(ask(site, model, tensor("input", "abc")).raw_output_contents[0]).decode()
        return "" if raw == wanted else f"{raw!r} instead of {wanted!r}"

    return check


def stream(wanted: list[bytes], given: triton.InferInput, error: str = "") -> Check:
    def check(site: Site, model: str) -> str:
        found: queue.Queue[Any] = queue.Queue()
        with triton.InferenceServerClient(site.grpc) as client:
            client.start_stream(lambda result, error: found.put(error or result.get_response()))
            client.async_stream_infer(model, [given])
            client.stop_stream()
        items = list(found.queue)
        failed = [str(each) for each in items if isinstance(each, Exception)]
        raw = [bytes(each.raw_output_contents[0]) for each in items if not isinstance(each, Exception)]
        right = raw == wanted and (error in failed[0] if error and failed else not failed and not error)
        return "" if right else f"{raw} {failed}"

    return check


def word(site: Site, model: str) -> str:
    found = ask(site, model, tensor("input", np.array([1], np.float32)))
    rest = site.infer(model, {"name": "input", "datatype": "FP32", "shape": [1], "data": [1]})
    right = found.outputs[0].datatype.endswith("w") and len(found.raw_output_contents[0]) == 36
    return "" if right and rest.status_code == 400 else f"{found} {rest.text}"


def sums(site: Site, model: str) -> str:
    for datatype in TYPES:
        dtype = {"FP32": "float32", "FP64": "float64"}.get(datatype, datatype.lower())
        given = [tensor(name, np.ones((1, 3), dtype), datatype) for name in ("in1", "in2")]
        answer = ask(site, model, *given)
        if np.frombuffer(answer.raw_output_contents[0], dtype).tolist() != [2, 2, 2]:
            return f"{datatype}: {answer}"
        if answer.outputs[0].datatype != datatype:
            return f"{datatype}: {answer.outputs[0].datatype}"
    return ""


def same(site: Site, model: str) -> str:
    answer = ask(site, model, tensor("in", np.array([[1, 2]], np.float32)))
    found = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
    return "" if found == [1, 2] and list(answer.outputs[0].shape) == [1, 2] else str(answer)


def two_outputs(site: Site, model: str) -> str:
    try:
        answer = ask(site, model, tensor("in", np.array([1], np.float32)))
    except triton.InferenceServerException as error:
        return "" if FAILED in str(error) else str(error)
    return str(answer)


PLUS_1, PLUS_2 = numbers([2, 3], [1, 2]), numbers([3, 4], [1, 2])
ITEMS = [np.float32(i).tobytes() for i in (2, 3, 4)]
SCRIPT_CASES: dict[str, Check] = {
    "symmetric_increment": PLUS_1,
    "symmetric_increment_by_2": PLUS_2,
    "single_io_increment": PLUS_1,
    "single_io_increment_by_2": PLUS_2,
    "symmetric_scalar_increment": numbers([2], [1]),
    "concatenate_input_arrays": numbers([1, 2, 3], [[1, 2]], [[3]]),  # type: ignore[list-item]
    "symmetric_scalar_increment_generator": stream(ITEMS, tensor("input", np.array([1], np.float32))),
    "return_custom_datatype": word,
    **dict.fromkeys(
        (
            "good_initialize_with_arguments", "good_initialize_with_class_members", "relative_base_path",
            "good_finalize_pass", "good_finalize_missing_definition", "good_finalize_remove_file",
            "bad_initialize_no_method", "bad_finalize_exception", "bad_execute_wrong_signature",
            "bad_execute_illegal_operation", "bad_execute_import_error", "bad_execute_read_more_than_one_input",
            "bad_execute_wrong_return_value", "return_non_tensor_object", "return_none_object",
        ),
        fails,
    ),
    **dict.fromkeys(
        (
            "bad_initialize_throw_exception", "bad_initialize_import_outside_class_error", "bad_missing_class",
            "bad_execute_no_method",
        ),
        does_not_load,
    ),
}  # fmt: skip
UPPER = [b"Abc", b"aBc", b"abC"]
# Handler, name of the node, whether it has LOOPBACK, outcome.
FUNCTIONAL_CASES: list[tuple[str, str, bool, Check]] = [
    ("ovms_basic/python_model", "upper_text", False, text("ABC")),
    ("ovms_basic/python_model_loopback", "loopback_upper_text", True, stream(UPPER, tensor("input", "abc"))),
    ("incrementer/incrementer", "incrementer", False, text("abcabc")),
    ("ovms_corrupted/python_model_corrupted_import", "node", False, does_not_load),
    ("ovms_corrupted/python_model_missing_execute", "node", False, does_not_load),
    ("ovms_corrupted/python_model_exceptions", "exception_initialize", False, does_not_load),
    ("ovms_corrupted/python_model_exceptions", "exception_execute", False, fails),
    ("ovms_corrupted/python_model_exceptions", "exception_finalize", False, text("ABC")),
    (
        "ovms_corrupted/python_model_loopback_multiple_use_of_valid_outputs",
        "loopback_upper_text",
        True,
        stream([], tensor("input", "abc"), FAILED),
    ),
    (
        "ovms_corrupted/python_model_loopback_return_instead_of_yield",
        "loopback_upper_text",
        True,
        text("Abc"),
    ),
    (
        "ovms_corrupted/python_model_writing_to_loopback_output_in_execute",
        "loopback_upper_text",
        True,
        stream([], tensor("input", "abc"), FAILED),
    ),
]


def graphs(source: Path) -> dict[str, tuple[str, Check]]:
    """Return the text and the expected outcome of each graph, by a name."""
    found: dict[str, tuple[str, Check]] = {}
    ends = ["OVMS_PY_TENSOR:input"], ["OVMS_PY_TENSOR:output"]
    for name, check in SCRIPT_CASES.items():
        into = ["OVMS_PY_TENSOR1:input1", "OVMS_PY_TENSOR2:input2"] if "concatenate" in name else ends[0]
        node = python("node", into, ends[1], f"{source}/{SCRIPTS}/{name}.py", loop="generator" in name)
        found[name] = graph(into, ends[1], node), check
    for path, name, loop, check in FUNCTIONAL_CASES:
        text_ = graph(*ends, python(name, *ends, f"{source}/{FUNCTIONAL}/{path}.py", loop=loop))
        found[f"{Path(path).name}_{name}"] = text_.replace(f"{name}_loop", "loopback"), check
    return found


def tensor_tests(source: Path) -> str:
    """Run OVMS's tests of the tensor; return what is wrong."""
    code = (
        "import sys, pytest, ovserve.kinds.python.worker.pyovms as p; sys.modules['pyovms'] = p;"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-c', sys.argv[1], sys.argv[2]]))"
    )
    command = [sys.executable, "-c", code, "/dev/null", str(source / TENSOR_TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    print(f"    {done.stdout.strip().splitlines()[-1]}")
    return "" if done.returncode == 0 else done.stdout


def main(source: Path) -> int:
    cases = graphs(source)
    missing = {p.stem for p in (source / SCRIPTS).glob("*.py")} - cases.keys() - {"add_two_inputs"}
    wrong = {f"{name}: not known to this script": "new" for name in missing}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name, (text_, _) in cases.items():
            (root / name).mkdir()
            (root / name / "graph.pbtxt").write_text(text_)
        site = start_site(root, [{"name": name} for name in cases])
        try:
            for name, (_, check) in cases.items():
                wrong[name] = outcome(check, site, name)
            made = REMOVED.exists()
        finally:
            site.server.stop()
    wrong["the file of good_finalize_remove_file is removed"] = "" if made and not REMOVED.exists() else "no"
    wrong["tests of pyovms.Tensor"] = tensor_tests(source)
    for name, why in wrong.items():
        print(f"{'ok ' if not why else 'WRONG'} {name} {why}")
    print(f"{len(wrong)} cases, {sum(map(bool, wrong.values()))} wrong")
    return 1 if any(wrong.values()) else 0


def outcome(check: Check, site: Site, name: str) -> str:
    try:
        return check(site, name)
    except (triton.InferenceServerException, httpx.HTTPError, KeyError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    began = time.monotonic()
    code = main(Path(sys.argv[1]).resolve())
    print(json.dumps({"seconds": round(time.monotonic() - began, 1)}))
    sys.exit(code)

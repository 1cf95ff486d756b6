"""Python nodes over KServe: handlers of our own with the behaviour of OVMS's test handlers."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.conftest import until
from tests.inference.conftest import Site, start_site
from tests.inference.python_graphs import converter, graph, one, python, write

INCREMENT = """
    import numpy as np
    from pyovms import Tensor
    import step

    class OvmsPythonModel:
        def initialize(self, kwargs):
            self.about = kwargs

        def execute(self, inputs):
            print("inputs", [i.name for i in inputs])
            return [Tensor(self.about["output_names"][0], np.array(inputs[0]) + step.STEP)]

        def finalize(self):
            print("finalised")
"""
GENERATE = """
    import time
    import numpy as np
    from pyovms import Tensor

    class OvmsPythonModel:
        def execute(self, inputs):
            count, pause = np.array(inputs[0]).tolist()
            return self.items(count, pause)

        def items(self, count, pause):
            try:
                for i in range(int(count)):
                    print("computes", i)
                    yield [Tensor("output", np.float32([i]))]
                    time.sleep(pause)
                if count < 0:
                    yield [Tensor("output", np.float32([0]))]
                    raise ValueError("no more")
            finally:
                print("closed")
"""
ODD = """
    import ctypes, os, time
    import numpy as np
    from pyovms import Tensor

    class OvmsPythonModel:
        def execute(self, inputs):
            return getattr(self, bytes(inputs[0]).decode())(inputs)

        def raises(self, inputs):
            raise ValueError("the third\\nof five")

        def exits(self, inputs):
            raise SystemExit(3)

        def imports(self, inputs):
            import there_is_no_such_module

        def none(self, inputs):
            return None

        def a_tuple(self, inputs):
            return tuple(inputs)

        def no_tensor(self, inputs):
            return [1]

        def wrong_name(self, inputs):
            return [Tensor("outputs", b"")]

        def twice(self, inputs):
            return [Tensor("output", b""), Tensor("output", b"")]

        def generator(self, inputs):
            yield [Tensor("output", b"")]

        def spins(self, inputs):
            while True:
                pass

        def sleeps(self, inputs):
            time.sleep(60)

        def crashes(self, inputs):
            ctypes.string_at(0)

        def child(self, inputs):
            import subprocess
            sleeping = subprocess.Popen(["sleep", "60"])
            sleeping.terminate()
            return [Tensor("output", np.array([sleeping.wait(5)]))]

        def starts(self, inputs):
            import subprocess
            return [Tensor("output", np.array([subprocess.Popen(["sleep", "120"]).pid]))]

        def forks(self, inputs):
            child = os.fork()
            if not child:
                time.sleep(120)
                os._exit(0)
            return [Tensor("output", np.array([child]))]

        def pid(self, inputs):
            return [Tensor("output", np.array([os.getpid()]))]

        def custom(self, inputs):
            return [Tensor("output", b"\\x01\\x02\\x03", shape=[7, 7], datatype="MY_WORD")]

        def texts(self, inputs):
            return [Tensor("output", b"\\x02\\0\\0\\0ab\\x01\\0\\0\\0c", [2], "BYTES")]

        def columns(self, inputs):
            return [Tensor("output", np.arange(6, dtype=np.int32).reshape(2, 3).T)]

        def wrong_size(self, inputs):
            return [Tensor("output", np.zeros(3, np.float32), shape=[5])]
"""
ECHO = """
    from pyovms import Tensor

    class OvmsPythonModel:
        def execute(self, inputs):
            given = inputs[0]
            print("got", given.datatype, given.shape, given.size, given.data.format)
            return [Tensor("output", given, given.shape, given.datatype)]
"""
MANY = """
    import numpy as np
    from pyovms import Tensor

    class OvmsPythonModel:
        def initialize(self, kwargs):
            self.name, self.outputs = kwargs["node_name"], kwargs["output_names"]

        def execute(self, inputs):
            print("got", " ".join(i.name for i in inputs))
            if self.name == "first":
                self.outputs = self.outputs
                return [Tensor(name, np.float32([i])) for i, name in enumerate(self.outputs)]
            return [Tensor(self.outputs[0], sum(np.array(i) for i in inputs))]
"""

PY = "OVMS_PY_TENSOR"
GRAPHS = {
    "chain": graph(
        [f"{PY}:input"], [f"{PY}:output"],
        python("first", [f"{PY}:input"], ["B:middle", "A:side"], "many.py"),
        python("second", ["Z:middle", "C:side", "input"], ["OUT:output"], "many.py"),
    ),
    "stream_chain": graph(
        [f"{PY}:input"], [f"{PY}:output2"],
        python("generator", ["IN:input"], ["OUT:output"], "generate.py", loop=True),
        python("step", ["IN:output"], ["OUT:output2"], "increment.py"),
    ),
    "model": graph(
        [f"{PY}:input"], [f"{PY}:output"],
        'node { calculator: "OpenVINOModelServerSessionCalculator" output_side_packet: "SESSION:session" node_options: {'
        ' [type.googleapis.com / mediapipe.OpenVINOModelServerSessionCalculatorOptions]: { servable_name: "dummy" } } }',
        python("before", ["IN:input"], ["OUT:prepared"], "increment.py"),
        converter(f"{PY}:prepared", "OVTENSOR:model_in"),
        'node { calculator: "OpenVINOInferenceCalculator" input_side_packet: "SESSION:session" input_stream: "B:model_in"'
        ' output_stream: "A:model_out" node_options: { [type.googleapis.com / mediapipe.OpenVINOInferenceCalculatorOptions]: {'
        ' tag_to_input_tensor_names { key: "B" value: "b" } tag_to_output_tensor_names { key: "A" value: "a" } } } }',
        converter("OVTENSOR:model_out", f"{PY}:answer", "renamed"),
        python("after", ["IN:answer"], ["OUT:output"], "increment.py"),
    ),
}  # fmt: skip
INITIALIZE = """
    class OvmsPythonModel:
        def initialize(self, kwargs):
            raise RuntimeError("no weights")

        def execute(self, inputs):
            return []
"""


NAMES = """
    from pyovms import Tensor

    class OvmsPythonModel:
        def execute(self, inputs):
            text = " ".join(i.name for i in inputs).encode()
            return [Tensor("output", len(text).to_bytes(4, "little") + text, [1], "BYTES")]
"""
VENV = """
    import sys
    import only_there
    from pyovms import Tensor
    import numpy as np

    class OvmsPythonModel:
        def execute(self, inputs):
            assert sys.prefix.endswith("/venv"), sys.prefix
            return [Tensor("output", np.array(inputs[0]) + only_there.VALUE)]
"""


@pytest.fixture(scope="module")
def nodes(plain_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("python")
    os.symlink(plain_models, root / "models")
    step = {"increment": INCREMENT, "step": "STEP = 1"}
    write(root / "increment", one().replace("handler.py", "increment.py"), **step)
    write(root / "by_two", one().replace("handler.py", "increment.py"), increment=INCREMENT, step="STEP = 2")
    write(root / "generate", one(loop=True), handler=GENERATE)
    write(root / "odd", one(more="call_timeout: 5"), handler=ODD)
    write(root / "echo", one(), handler=ECHO)
    write(root / "chain", GRAPHS["chain"], many=MANY)
    write(root / "stream_chain", GRAPHS["stream_chain"], generate=GENERATE, **step)
    write(root / "model", GRAPHS["model"], **step)
    write(root / "reloaded", one().replace("handler.py", "increment.py"), **step)
    two = (
        python("first", [f"{PY}:input"], [f"{PY}:a"], "increment.py"),
        python("second", [f"{PY}:a"], [f"{PY}:output"]),
    )
    write(root / "broken", graph([f"{PY}:input"], [f"{PY}:output"], *two), handler=INITIALIZE, **step)
    write(
        root / "pair",
        graph([f"{PY}:b", f"{PY}1:a"], [f"{PY}:output"], python("node", ["B:b", "A:a"], [f"{PY}:output"])),
        handler=NAMES,
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    (site_packages,) = (root / "venv/lib").glob("*/site-packages")
    (site_packages / "only_there.py").write_text("VALUE = 41")
    write(root / "venv_node", one(more='interpreter: "../venv/bin/python"'), handler=VENV)
    (root / "other_python").write_text("#!/bin/sh\necho it did not start >&2\nexit 3\n")
    (root / "other_python").chmod(0o755)
    write(root / "other_node", one(more='interpreter: "../other_python"'), handler=VENV)
    entries: list[dict[str, Any]] = [{"name": "dummy", "base_path": "models/dummy"}]
    entries += [{"name": path.name} for path in sorted(root.iterdir()) if (path / "graph.pbtxt").is_file()]
    made = start_site(root, entries, "--file_system_poll_wait_seconds", "0.2")
    yield made
    made.server.stop()


def logged(site: Site, *texts: str) -> None:
    """Wait until lines of the log hold the texts, in this order."""

    def found() -> bool:
        lines = iter([*site.server.errors])
        return all(any(text in line for line in lines) for text in texts)

    until(found, lambda: (texts, site.server.errors[-20:]))


def numbers(datatype: str, data: list[Any], name: str = "input") -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}


def output(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    (only,) = answer.json()["outputs"]
    return dict(only)


def text(word: str) -> triton_grpc.InferInput:
    """Raw bytes that are not KServe's form of BYTES, as OVMS's clients of Python nodes send them."""
    given = triton_grpc.InferInput("input", [len(word)], "BYTES")
    given._raw_content = word.encode()
    return given


def ask(site: Site, word: str) -> triton_grpc.InferResult:
    with triton_grpc.InferenceServerClient(site.grpc) as client:
        return client.infer("odd", [text(word)], client_timeout=30)


@pytest.mark.parametrize(
    "datatype",
    ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP32", "FP64", "FP16"],
)
def test_numbers_keep_their_type(nodes: Site, datatype: str) -> None:
    found = output(nodes.infer("increment", numbers(datatype, [1, 2, 3])))
    assert (found["datatype"], found["shape"], found["data"]) == (datatype, [3], [2, 3, 4])


def test_shapes_without_elements_or_dimensions(nodes: Site) -> None:
    for shape, data in (([], [5]), ([0], []), ([2, 0, 3], []), ([1, 1], [5])):
        given = {"name": "input", "shape": shape, "datatype": "FP32", "data": data}
        found = output(nodes.infer("increment", given))
        assert (found["shape"], found["data"]) == (shape, [6.0] * len(data))


def test_graphs_with_modules_of_the_same_names_have_their_own(nodes: Site) -> None:
    assert output(nodes.infer("increment", numbers("INT64", [1])))["data"] == [2]
    assert output(nodes.infer("by_two", numbers("INT64", [1])))["data"] == [3]


def test_tensors_are_named_by_stream_and_come_in_the_order_of_tags(nodes: Site) -> None:
    found = output(nodes.infer("chain", numbers("FP32", [10])))
    assert found["data"] == [11.0]
    logged(nodes, "chain/first: got input", "chain/second: got input side middle")


def test_a_model_between_two_handlers(nodes: Site) -> None:
    given = {"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [1.0] * 10}
    assert output(nodes.infer("model", given))["data"] == [4.0] * 10
    logged(nodes, "model/before: inputs ['input']", "model/after: inputs ['renamed']")
    wrong = nodes.infer("model", {**given, "shape": [10]})
    assert (wrong.status_code, "expected FP32 [1,10], got FP32 [10]" in wrong.text) == (400, True)


def stream(site: Site, model: str, *given: list[float], wait: float = 0.0) -> list[Any]:
    """Responses as (item or error, request id, timestamp)."""
    found: queue.Queue[Any] = queue.Queue()

    def on_answer(result: Any, error: Any) -> None:
        if error is not None:
            found.put((str(error), "", -1))
            return
        answer = result.get_response()
        (out,) = answer.outputs
        at = answer.parameters["OVMS_MP_TIMESTAMP"].int64_param
        found.put((result.as_numpy(out.name).tolist()[0], answer.id, at))

    with triton_grpc.InferenceServerClient(site.grpc) as client:
        client.start_stream(on_answer)
        for i, values in enumerate(given):
            tensor = triton_grpc.InferInput("input", [2], "FP32")
            tensor.set_data_from_numpy(np.float32(values))
            client.async_stream_infer(model, [tensor], request_id=f"r{i}")
            time.sleep(wait)
        client.stop_stream()
    return list(found.queue)


def test_a_generator_is_streamed_item_by_item(nodes: Site) -> None:
    found = stream(nodes, "generate", [4, 0])
    assert found[0] == (0.0, "r0", 0)
    assert [(value, at) for value, _, at in found] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    # The generator's timestamps leave room for none of the next request's, which follow them.
    for wait in (0.5, 2, 10):  # until the first request is over
        found = stream(nodes, "generate", [3, 0], [2, 0], wait=wait)
        if "already processing" not in str(found):
            break
    assert [(value, at) for value, _, at in found] == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4)]
    assert [value for value, *_ in stream(nodes, "stream_chain", [3, 0])] == [1.0, 2.0, 3.0]


def test_timestamps_and_inputs_that_do_not_come(nodes: Site) -> None:
    """A handler gets what there is at a timestamp; the client's timestamps count."""
    found: queue.Queue[Any] = queue.Queue()

    def given(name: str) -> triton_grpc.InferInput:
        tensor = triton_grpc.InferInput(name, [1], "FP32")
        tensor.set_data_from_numpy(np.float32([1]))
        return tensor

    with triton_grpc.InferenceServerClient(nodes.grpc) as client:
        client.start_stream(lambda result, error: found.put(error or result))
        client.async_stream_infer("pair", [given("b")], parameters={"OVMS_MP_TIMESTAMP": 5})
        client.async_stream_infer("pair", [given("a"), given("b")], parameters={"OVMS_MP_TIMESTAMP": 7})
        client.async_stream_infer("pair", [given("a")], parameters={"OVMS_MP_TIMESTAMP": 9})
        client.stop_stream()
    answers = [
        (r.as_numpy("output").tolist(), r.get_response().parameters["OVMS_MP_TIMESTAMP"].int64_param)
        for r in found.queue
    ]
    assert answers == [([b"b"], 5), ([b"a b"], 7), ([b"a"], 9)]


def test_a_generator_needs_a_stream(nodes: Site) -> None:
    wrong = nodes.infer("generate", {**numbers("FP32", [3, 0])})
    assert (wrong.status_code, "ModelStreamInfer" in wrong.text) == (400, True)
    assert output(nodes.infer("generate", numbers("FP32", [1, 0])))["data"] == [0.0]
    empty = nodes.infer("generate", numbers("FP32", [0, 0]))
    assert (empty.status_code, "ended without an item" in empty.text) == (400, True)


def test_a_second_request_while_a_generator_lasts_ends_the_stream(nodes: Site) -> None:
    found = stream(nodes, "generate", [1e6, 0.05], [1, 0], wait=0.2)
    assert "Node is already processing data" in found[-1][0]
    logged(nodes, "generate/node: closed")


def test_a_generator_that_raises_ends_after_its_items(nodes: Site) -> None:
    found = stream(nodes, "generate", [-1, 0])
    assert found[0][0] == 0.0
    assert "Error occurred during graph execution: ValueError: no more" in found[-1][0]


def test_a_generator_stops_when_its_client_does(nodes: Site) -> None:
    """It is at most a few items ahead of a client that does not read, and is closed when the client leaves."""
    with triton_grpc.InferenceServerClient(nodes.grpc) as client:
        arrived = threading.Event()
        client.start_stream(lambda result, error: arrived.set())
        tensor = triton_grpc.InferInput("input", [2], "FP32")
        tensor.set_data_from_numpy(np.float32([1e6, 0.01]))
        client.async_stream_infer("generate", [tensor])
        assert arrived.wait(60), "an item arrives before the last is computed, three hours later"
        seen = len(nodes.server.errors)
        client.stop_stream(cancel_requests=True)
    until(
        lambda: any("generate/node: closed" in line for line in nodes.server.errors[seen:]),
        what="it goes on without its client",
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("raises", "Error occurred during graph execution: ValueError: the third"),
        ("exits", "Error occurred during graph execution: SystemExit: 3"),
        ("imports", "No module named 'there_is_no_such_module'"),
        ("none", "expected a list or a generator, got NoneType"),
        ("a_tuple", "expected a list or a generator, got tuple"),
        ("no_tensor", "expected pyovms.Tensor, got int"),
        ("wrong_name", "'outputs' is not an output; the node has output"),
        ("twice", "output 'output' is given twice"),
        ("generator", "a generator needs a LOOPBACK"),
        ("missing", "AttributeError: 'OvmsPythonModel' object has no attribute 'missing'"),
    ],
)
def test_a_failing_call_says_why_and_spoils_nothing(nodes: Site, word: str, said: str) -> None:
    with pytest.raises(triton_grpc.InferenceServerException, match="INVALID_ARGUMENT") as caught:
        ask(nodes, word)
    assert said in str(caught.value)
    assert ask(nodes, "columns").as_numpy("output").tolist() == [[0, 3], [1, 4], [2, 5]]
    if word == "raises":
        logged(nodes, "odd/node: Traceback", "odd/node: ValueError: the third")


def test_a_call_that_takes_too_long_ends(nodes: Site) -> None:
    """Python code is stopped; the process of one that does not stop is replaced."""
    before = ask(nodes, "pid").as_numpy("output").tolist()
    with pytest.raises(triton_grpc.InferenceServerException, match="did not answer within 5 s"):
        ask(nodes, "spins")
    assert ask(nodes, "pid").as_numpy("output").tolist() == before, "the thread came back"


def test_a_crash_costs_one_graph_and_one_call(nodes: Site) -> None:
    for end in ("crashes", "kill -9"):
        (before,) = ask(nodes, "pid").as_numpy("output").tolist()
        if end == "crashes":
            with pytest.raises(triton_grpc.InferenceServerException, match="UNAVAILABLE"):
                ask(nodes, end)
        else:
            os.kill(before, signal.SIGKILL)
            with suppress(
                triton_grpc.InferenceServerException
            ):  # the one call, if it is sent before it is known
                ask(nodes, "pid")
        assert output(nodes.infer("increment", numbers("INT64", [1])))["data"] == [2]
        (after,) = ask(nodes, "pid").as_numpy("output").tolist()
        assert after != before


def test_a_program_that_a_handler_starts_can_be_ended(nodes: Site) -> None:
    assert ask(nodes, "child").as_numpy("output").tolist() == [-signal.SIGTERM]


@pytest.mark.parametrize("way", ["starts", "forks"])
def test_a_program_that_outlives_its_engine_holds_nothing_up(nodes: Site, way: str) -> None:
    """It keeps the engine's output open, and a forked one its socket; the end of both was waited for."""
    (child,) = ask(nodes, way).as_numpy("output").tolist()
    (before,) = ask(nodes, "pid").as_numpy("output").tolist()
    try:
        os.kill(before, signal.SIGKILL)
        began = time.monotonic()
        with suppress(triton_grpc.InferenceServerException):
            ask(nodes, "pid")
        (after,) = ask(nodes, "pid").as_numpy("output").tolist()
        assert after != before
        assert time.monotonic() - began < 30, "the program runs for 120 s"
    finally:
        os.kill(child, signal.SIGKILL)


def test_many_calls_at_once(nodes: Site) -> None:
    """More than there are threads; each gets its own answer."""
    url = f"{nodes.url}/v2/models/increment/infer"
    with ThreadPoolExecutor(40) as pool, httpx.Client(timeout=230) as client:
        answers = pool.map(lambda i: client.post(url, json={"inputs": [numbers("INT64", [i])]}), range(120))
        assert [output(answer)["data"] for answer in answers] == [[i + 1] for i in range(120)]


def test_datatypes_of_ones_own(nodes: Site) -> None:
    found = ask(nodes, "custom").get_response()
    assert (found.outputs[0].datatype, [*found.outputs[0].shape]) == ("MY_WORD", [7, 7])
    assert found.raw_output_contents[0] == b"\x01\x02\x03"
    assert ask(nodes, "texts").as_numpy("output").tolist() == [b"ab", b"c"]
    wrong = ask(nodes, "wrong_size").get_response()
    assert (len(wrong.raw_output_contents[0]), [*wrong.outputs[0].shape]) == (12, [5])


def test_any_bytes_reach_a_handler_as_they_are(nodes: Site) -> None:
    for datatype, shape, data in (
        ("BYTES", [3], b"\xff\0a"),
        ("PICTURE", [2, 2], b"abc"),
        ("BF16", [1], b"ab"),
    ):
        given = triton_grpc.InferInput("input", shape, datatype)
        given._raw_content = data
        with triton_grpc.InferenceServerClient(nodes.grpc) as client:
            answer = client.infer("echo", [given]).get_response()
        assert (answer.outputs[0].datatype, [*answer.outputs[0].shape]) == (datatype, shape)
        assert answer.raw_output_contents[0] == data
        logged(nodes, f"echo/node: got {datatype} {tuple(shape)} {len(data)} B")
    texts = {"name": "input", "shape": [2], "datatype": "BYTES", "data": ["a", "ż"]}
    assert output(nodes.infer("echo", texts))["data"] == ["a", "ż"]


def test_over_rest_a_word_of_ones_own_is_binary_only(nodes: Site) -> None:
    head = '{"inputs":[{"name":"input","shape":[9],"datatype":"MINE","parameters":{"binary_data_size":3}}]%s}'
    for more, status in ((',"parameters":{"binary_data_output":true}', 200), ("", 400)):
        json = (head % more).encode()
        answer = httpx.post(
            f"{nodes.url}/v2/models/echo/infer",
            content=json + b"abc",
            headers={"Inference-Header-Content-Length": str(len(json))},
        )
        assert answer.status_code == status, answer.text
        assert answer.content.endswith(b"abc") if status == 200 else "MINE" in answer.text
    numbers_ = {"name": "input", "shape": [1], "datatype": "MINE", "data": [1]}
    assert "datatype: expected one of" in nodes.infer("echo", numbers_).text


def test_only_streams_of_python_take_any_bytes(nodes: Site) -> None:
    given = triton_grpc.InferInput("b", [1, 10], "MINE")
    given._raw_content = b"abc"
    with (
        triton_grpc.InferenceServerClient(nodes.grpc) as client,
        pytest.raises(triton_grpc.InferenceServerException, match=r"inputs\[0\].datatype: expected one of"),
    ):
        client.infer("dummy", [given])


def test_handlers_in_another_environment(nodes: Site) -> None:
    assert output(nodes.infer("venv_node", numbers("INT64", [1])))["data"] == [42]
    message = nodes.states("other_node")["1"][1]
    assert "exit status 3" in message
    assert "it did not start" in message


def test_metrics_count_by_node(nodes: Site) -> None:
    with pytest.raises(triton_grpc.InferenceServerException):
        ask(nodes, "raises")
    assert nodes.infer("chain", numbers("FP32", [1])).status_code == 200
    lines = httpx.get(f"{nodes.url}/metrics").text.splitlines()
    found = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if "python" in line and line[0] != "#"
    }
    assert found['ovserve_python_errors_total{name="odd",node="node",type="exception"}'] >= 1
    for node in ("first", "second"):
        assert found[f'ovserve_python_call_seconds_count{{name="chain",node="{node}"}}'] >= 1
        assert found[f'ovserve_python_calls_running{{name="chain",node="{node}"}}'] == 0
    (model,) = (m for m in httpx.get(f"{nodes.url}/v3/capabilities").json()["data"] if m["model"] == "chain")
    (engine,) = model["engines"]
    assert (engine["kind"], engine["facts"]["nodes"]) == ("python", ["first", "second"])


def test_large_tensors(nodes: Site) -> None:
    data = np.arange(3_000_000, dtype=np.float32)
    tensor = triton_grpc.InferInput("input", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    with triton_grpc.InferenceServerClient(nodes.grpc) as client:
        found = client.infer("increment", [tensor]).as_numpy("output")
    assert np.array_equal(found, data + 1)


def test_a_reload_runs_the_new_code(nodes: Site) -> None:
    """Also of a module that the handler imports; a handler that does not load changes nothing."""
    directory = nodes.root / "reloaded"

    def reload() -> str:
        """Return what is wrong; `broken` always is."""
        return httpx.post(f"{nodes.url}/v1/config/reload", timeout=230).text

    def step() -> Any:
        return output(nodes.infer("reloaded", numbers("INT64", [1])))["data"]

    assert step() == [2]
    write(directory, one().replace("handler.py", "increment.py"), step="STEP = 5")
    assert "reloaded" not in reload()
    assert step() == [6]
    logged(nodes, "reloaded/node: finalised")
    write(directory, one().replace("handler.py", "increment.py"), step="STEP = nothing")
    assert "increment.py cannot be imported: NameError: name 'nothing' is not defined" in reload()
    assert step() == [6]
    write(directory, one().replace("handler.py", "other.py"), step="STEP = 7", other=INCREMENT)
    assert "reloaded" not in reload()
    assert step() == [8]


def test_a_handler_that_does_not_load_finalises_those_before_it(nodes: Site) -> None:
    states = nodes.states("broken")["1"]
    assert (
        "node 'second': handler_path: initialize of handler.py failed: RuntimeError: no weights" in states[1]
    )
    assert "graph.pbtxt:" in states[1]
    logged(nodes, "broken/second: RuntimeError: no weights", "broken/first: finalised")

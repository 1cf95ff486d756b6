"""Python nodes behind /v3: any method and body in; JSON, text, bytes or a stream of events out."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import until
from tests.inference.conftest import Site, start_site
from tests.inference.python_graphs import converter, graph, python, write

SERVICE = """
    import os
    import time
    import numpy as np
    from pyovms import HttpResponse

    class OvmsPythonModel:
        def execute(self, inputs):
            request = inputs[0]
            return getattr(self, request.path.rpartition("/")[2])(request)

        def show(self, request):
            return {
                "method": request.method, "path": request.path, "query": request.query,
                "type": request.headers.get("content-type"), "key": request.headers.get("authorization"),
                "size": len(request.body), "mean": np.float32(2.5), "row": np.arange(3),
            }

        def text(self, request):
            return "ż" * 3

        def raw(self, request):
            return request.body[::-1]

        def made(self, request):
            return HttpResponse([1, 2], status=201, headers={"X-Mine": "yes"})

        def page(self, request):
            return HttpResponse("<p>", content_type="text/html")

        def events(self, request):
            try:
                for i in range(int(request.query["n"])):
                    yield {"i": i}
                    print("sent", i)
                    time.sleep(float(request.query["pause"]))
                    while not os.path.exists(request.query.get("gate", "/")):
                        time.sleep(0.01)
                yield "[DONE]"
            finally:
                print("closed")

        def lines(self, request):
            yield HttpResponse(status=202, content_type="application/x-ndjson", headers={"X-Mine": "yes"})
            yield {"a": 1}
            yield {"b": 2}

        def parts(self, request):
            yield b"ab"
            yield b"\\xff\\0"

        def multi(self, request):
            yield "two\\nlines"

        def breaks(self, request):
            yield {"i": 0}
            raise ValueError("half way")

        def raises(self, request):
            raise KeyError("nothing")

        def nan(self, request):
            return {"x": float("nan")}

        def array(self, request):
            return [1, 2]

        def none(self, request):
            return None

        def bad_header(self, request):
            return HttpResponse(headers={"X-Mine": "a\\r\\nb"})

        def gone(self, request):
            return HttpResponse(status=204)

        def no_body(self, request):
            return HttpResponse("text", status=204)

        def late_header(self, request):
            made = HttpResponse("text")
            made.headers["X-Mine"] = "a\\r\\nb"
            return made

        def own_length(self, request):
            return HttpResponse(headers={"Content-Length": "5"})
"""
BEFORE = """
    import numpy as np
    from pyovms import Tensor

    class OvmsPythonModel:
        def execute(self, inputs):
            return [Tensor("prepared", np.float32([inputs[0].json()["values"]]))]
"""
AFTER = """
    import numpy as np

    class OvmsPythonModel:
        def execute(self, inputs):
            return {"values": np.array(inputs[0])[0]}
"""
HTTP = ["HTTP_REQUEST_PAYLOAD:request"], ["HTTP_RESPONSE_PAYLOAD:response"]
PY = "OVMS_PY_TENSOR"
AROUND_A_MODEL = graph(
    *HTTP,
    'node { calculator: "OpenVINOModelServerSessionCalculator" output_side_packet: "SESSION:session" node_options: {'
    ' [type.googleapis.com / mediapipe.OpenVINOModelServerSessionCalculatorOptions]: { servable_name: "dummy" } } }',
    python(
        "before",
        ["HTTP_REQUEST_PAYLOAD:request"],
        [f"{PY}:prepared"],
        "before.py",
        more='endpoints: "sums/dummy"',
    ),
    converter(f"{PY}:prepared", "OVTENSOR:model_in"),
    'node { calculator: "OpenVINOInferenceCalculator" input_side_packet: "SESSION:session" input_stream: "B:model_in"'
    ' output_stream: "A:model_out" node_options: { [type.googleapis.com / mediapipe.OpenVINOInferenceCalculatorOptions]: {'
    ' tag_to_input_tensor_names { key: "B" value: "b" } tag_to_output_tensor_names { key: "A" value: "a" } } } }',
    python("after", ["OVTENSOR:model_out"], ["HTTP_RESPONSE_PAYLOAD:response"], "after.py"),
)


@pytest.fixture(scope="module")
def web(plain_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("http")
    os.symlink(plain_models, root / "models")
    write(root / "service", graph(*HTTP, python("node", *HTTP, loop=True)), handler=SERVICE)
    write(root / "around", AROUND_A_MODEL, before=BEFORE, after=AFTER)
    write(
        root / "plain",
        graph(*HTTP, python("node", *HTTP, more='endpoints: ["shared/x", "chat/completions"]')),
        handler=SERVICE.replace("show", "x"),
    )
    write(
        root / "other",
        graph(*HTTP, python("node", *HTTP, more='endpoints: "shared/*"')),
        handler=SERVICE.replace("show", "x"),
    )
    names = ("service", "around", "plain", "other")
    entries = [{"name": "dummy", "base_path": "models/dummy"}, *({"name": name} for name in names)]
    made = start_site(root, entries, "--sse_ping_interval", "0.6")
    yield made
    made.server.stop()


def error(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def test_a_handler_gets_the_whole_request(web: Site) -> None:
    url = f"{web.server.v3}/service/a/b/show"
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        answer = httpx.request(
            method,
            f"{url}?q=1&q=2&empty=",
            headers={"authorization": "Bearer secret", "content-type": "image/png"},
        )
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {
            "method": method, "path": "/v3/service/a/b/show", "query": {"q": "2", "empty": ""}, "type": "image/png",
            "key": None, "size": 0, "mean": 2.5, "row": [0, 1, 2],
        }  # fmt: skip
    files = {"file": ("a.bin", b"\xff" * 100_000)}
    assert httpx.post(url, files=files).json()["size"] > 100_000


def test_hostile_requests(web: Site) -> None:
    """Bytes that are not UTF-8, in the path, the query and a header; nothing that HTTP does not allow gets through."""
    with socket.create_connection(web.host.split(":")) as connection:  # type: ignore[arg-type]
        connection.sendall(
            b"POST /v3/service/%ff/show?a=%ff&b HTTP/1.1\r\nHost: x\r\nX-Odd: caf\xe9\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert b'"size": 0' in answer
    for path in ("/v3/service/../show", "/v3/service//show", "/v3/service/show%00"):
        assert httpx.get(f"{web.url}{path}").status_code in (200, 404, 500)
    big = httpx.post(f"{web.server.v3}/service/show", content=b"[" * 5_000_000)
    assert big.json()["size"] == 5_000_000, "a body is not read as JSON"
    head = httpx.head(f"{web.server.v3}/service/text")
    assert (head.status_code, head.content) == (200, b"")


def test_it_answers_text_bytes_or_what_it_likes(web: Site) -> None:
    text = httpx.get(f"{web.server.v3}/service/text")
    assert (text.headers["content-type"], text.text) == ("text/plain; charset=utf-8", "żżż")
    body = os.urandom(3_000_000)
    raw = httpx.post(f"{web.server.v3}/service/raw", content=body)
    assert (raw.headers["content-type"], raw.content) == ("application/octet-stream", body[::-1])
    made = httpx.get(f"{web.server.v3}/service/made")
    assert (made.status_code, made.headers["x-mine"], made.json()) == (201, "yes", [1, 2])
    assert httpx.get(f"{web.server.v3}/service/page").headers["content-type"] == "text/html"


def test_it_streams_events_as_they_are_made(web: Site, tmp_path: Path) -> None:
    gate = tmp_path / "gate"  # the second is made when it is there
    url = f"{web.server.v3}/service/events?n=3&pause=0&gate={gate}"
    with httpx.stream("POST", url) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = []
        for line in answer.iter_lines():
            if line == ": ping":  # a silent stream of events has comments
                assert lines == ['data: {"i": 0}']
                gate.touch()
            elif line:
                lines.append(line)
    assert gate.exists()
    assert lines == ['data: {"i": 0}', 'data: {"i": 1}', 'data: {"i": 2}', "data: [DONE]"]
    assert httpx.get(f"{web.server.v3}/service/multi").text == "data: two\ndata: lines\n\n"
    lines_ = httpx.get(f"{web.server.v3}/service/lines")
    assert (lines_.status_code, lines_.headers["content-type"], lines_.headers["x-mine"]) == (
        202,
        "application/x-ndjson",
        "yes",
    )
    assert [json.loads(line) for line in lines_.text.splitlines()] == [{"a": 1}, {"b": 2}]
    parts = httpx.get(f"{web.server.v3}/service/parts")
    assert (parts.headers["content-type"], parts.content) == ("application/octet-stream", b"ab\xff\0")


def test_a_stream_ends_when_its_client_leaves(web: Site) -> None:
    seen = len(web.server.errors)
    with httpx.stream("GET", f"{web.server.v3}/service/events?n=1000&pause=0.02") as answer:
        next(answer.iter_lines())
    until(
        lambda: any("service/node: closed" in line for line in web.server.errors[seen:]),
        what="the generator goes on without its client",
    )


def test_what_fails_is_said(web: Site) -> None:
    v3 = web.server.v3
    assert error(httpx.get(f"{v3}/service/raises"), 500).endswith("KeyError: 'nothing'")
    assert "Out of range float values are not JSON compliant" in error(httpx.get(f"{v3}/service/nan"), 500)
    assert "put a JSON array into HttpResponse" in error(httpx.get(f"{v3}/service/array"), 500)
    assert "got None" in error(httpx.get(f"{v3}/service/none"), 500)
    assert "is not the value of a header" in error(httpx.get(f"{v3}/service/bad_header"), 500)
    assert "is not the value of a header" in error(httpx.get(f"{v3}/service/late_header"), 500)
    assert "a response of status 204 has no body" in error(httpx.get(f"{v3}/service/no_body"), 500)
    gone = httpx.delete(f"{v3}/service/gone")
    assert (gone.status_code, gone.content) == (204, b"")
    assert "is set by the server" in error(httpx.get(f"{v3}/service/own_length"), 500)
    broken = httpx.get(f"{v3}/service/breaks").text.split("\n\n")
    assert broken[0] == 'data: {"i": 0}'
    assert "ValueError: half way" in broken[1]
    needs_loop = httpx.get(f"{v3}/shared/events?model=other&n=1&pause=0")
    assert "a generator needs a LOOPBACK" in error(needs_loop, 500)


def test_a_model_between_two_handlers(web: Site) -> None:
    answer = httpx.post(f"{web.server.v3}/sums/dummy", json={"values": [1] * 10})
    assert answer.json() == {"values": [2.0] * 10}
    assert "expected FP32 [1,10], got FP32 [1,3]" in error(
        httpx.post(f"{web.server.v3}/sums/dummy", json={"values": [1] * 3}), 400
    )
    assert "KeyError: 'values'" in error(httpx.post(f"{web.server.v3}/sums/dummy", json={}), 500)


def test_paths_are_those_that_the_graph_declares(web: Site) -> None:
    v3 = web.server.v3
    assert httpx.get(f"{v3}/service").status_code == 500, "no method of the handler has an empty name"
    assert httpx.get(f"{v3}/services").status_code == 404
    assert httpx.get(f"{v3}/plain").status_code == 404
    assert "shared/x is served by other, plain" in error(httpx.get(f"{v3}/shared/x"), 400).replace(
        "plain, other", "other, plain"
    )
    assert httpx.get(f"{v3}/shared/x?model=plain").json()["query"] == {"model": "plain"}
    assert httpx.get(f"{v3}/shared/text").text == "żżż"
    # A path that the server has itself keeps its rules: a JSON body that names the model.
    named = httpx.post(f"{v3}/chat/completions", json={"model": "plain"})
    assert "no attribute 'completions'" in error(named, 500)
    absent = httpx.post(f"{v3}/chat/completions", json={"model": "service"})
    assert "it has service, service/*" in error(absent, 404)

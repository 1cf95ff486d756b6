"""The one line of a request, as text and as JSON, and the span of it."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ovserve.access import AccessLog, Caller, RequestContext, Rights
from ovserve.access.access_log import Ended
from ovserve.errors import LoadError, UnsupportedParameter
from ovserve.log import TRACE_LEVEL, JsonFormatter, TextFormatter, request_id, setup
from ovserve.telemetry.tracing import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def told(log: AccessLog, status: int | str = 200, **more: Any) -> None:
    call = RequestContext(Caller("team-a", Rights()))
    call.model = "m"
    call.count(7, 0)
    call.count(0, 3)
    headers = {"traceparent": PARENT, "authorization": "Bearer secret-key"}
    given = {"failed": False, "quiet": False, "request_id": "r1", "headers": headers} | more
    log.log(call, "POST", "/v3/chat/completions", status, **given)


def test_the_line_has_everything_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        told(AccessLog())
    (record,) = caplog.records
    text = TextFormatter().format(record)
    for piece in ("POST /v3/chat/completions 200 model=m key=team-a", "prompt_tokens=7", "total_ms="):
        assert text.count(piece) == 1
    assert "generated_tokens=3 first_token_ms=" in text
    token = request_id.set("r1")
    line = json.loads(JsonFormatter().format(record))
    request_id.reset(token)
    assert line["request_id"] == "r1"
    assert line["logger"] == "access"
    assert (line["status"], line["prompt_tokens"], line["generated_tokens"]) == (200, 7, 3)
    assert line["time"].endswith("+00:00")
    assert "secret-key" not in text + str(line)


def test_the_line_says_why_a_request_was_rejected(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Ended] = []
    with caplog.at_level(logging.INFO):
        for param in ("temperature", "a b\n2026 INFO forged", "x" * 1000):
            call = RequestContext(Caller("team-a", Rights()))
            call.error = UnsupportedParameter("the client's secret: 4111", param=param)
            given = {"failed": False, "quiet": False, "request_id": "r1", "headers": {}}
            AccessLog(heard.append).log(call, "POST", "/v3/chat/completions", 400, **given)
    lines = [TextFormatter().format(record) for record in caplog.records]
    assert " 400 key=team-a error=unsupported_parameter param=temperature total_ms=" in lines[0]
    assert r'param="a b\n2026 INFO forged" total_ms=' in lines[1]
    assert len(lines[2]) < 300
    assert "4111" not in str(lines)
    assert heard[0].fields()["param"] == "temperature"


def test_a_probe_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    with caplog.at_level(logging.INFO):
        told(AccessLog(heard.append), quiet=True)
    assert not caplog.records
    assert not heard


def test_an_exception_is_one_json_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("ovserve.x", logging.ERROR, "f", 1, "it %s", ("broke",), sys.exc_info())
    written = JsonFormatter().format(record)
    assert "\n" not in written
    line = json.loads(written)
    assert line["message"] == "it broke"
    assert "ValueError: two\nlines" in line["exception"]


def test_to_a_file_that_is_rotated(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    path = tmp_path / "log"
    try:
        setup("TRACE", "json", str(path))
        logging.getLogger("ovserve.a").log(TRACE_LEVEL, "one")
        path.rename(tmp_path / "log.1")
        logging.getLogger("ovserve.a").info("two")
        assert json.loads((tmp_path / "log.1").read_text())["level"] == "TRACE"
        assert json.loads(path.read_text())["message"] == "two"
        assert capsys.readouterr().err.count("\n") == 2, "stderr has both"
        with pytest.raises(FileNotFoundError):
            setup("INFO", "text", str(tmp_path / "no" / "log"))
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
        root.setLevel(level)


def test_a_span_has_the_times_the_tokens_and_the_callers_trace() -> None:
    exporter = InMemorySpanExporter()
    log = AccessLog(Tracing("", exporter).record)
    told(log)
    told(log, 503, failed=True)
    told(log, "CANCELLED")
    told(log, quiet=True)
    spans = exporter.get_finished_spans()
    first, failed, rpc = (span for span in spans if span.kind is SpanKind.SERVER)
    decode = next(span for span in spans if span.name == "decode")
    assert decode.parent is not None
    assert decode.parent.span_id == first.context.span_id
    assert decode.end_time == first.end_time
    assert first.name == "POST /v3/chat/completions"
    assert first.kind is SpanKind.SERVER
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}-{first.parent.span_id:016x}" == PARENT[3:-3]
    attributes = dict(first.attributes or {})
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["gen_ai.usage.input_tokens"] == 7
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["http.response.status_code"] == 200
    assert attributes["ovserve.request_id"] == "r1"
    assert "secret-key" not in first.to_json()
    (event,) = first.events
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.start_time <= event.timestamp <= first.end_time
    assert first.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert (rpc.attributes or {})["rpc.status"] == "CANCELLED"
    assert first.resource.attributes["service.name"] == "ovserve"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(LoadError, match=r"pip install -e '.*\[otel\]'"):
        Tracing("http://127.0.0.1:4318")

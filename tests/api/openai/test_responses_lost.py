"""A response whose server was killed: told as far as its events were written down (openai.responses.replay)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.api.openai.common import DONE
from ovserve.api.openai.responses.replay import lost, replay
from tests.api.openai.test_responses_writer import ADMITTED, call, check_order, events, writer
from tests.packets import packet

GONE = "the server ended"
PARTS = (
    packet(reasoning="hm", tokens=1, reasoning_tokens=1),
    packet("I ", 1),
    packet("look.", 1),
    call(0, '{"a"', "idA", "f"),
    call(0, ":1}"),
    packet("Done.", 1),
)


def texts(response: dict[str, Any]) -> str:
    found = ""
    for item in response["output"]:
        found += item.get("arguments", "")
        found += "".join(part["text"] for part in item.get("content", []) + item.get("summary", []))
    return found


def stream_and_body() -> tuple[list[bytes], bytes]:
    begun = writer(background=True)
    whole = begun.chunk(ADMITTED)
    body = begun.snapshot()
    for part in (*PARTS, packet("", 1, "stop", last=True)):
        whole += begun.chunk(part)
    return [block + b"\n\n" for block in whole.split(b"\n\n")[:-1]], body


@pytest.mark.parametrize("kept", range(1, len(stream_and_body()[0]) - 1))
def test_wherever_it_was_cut_the_text_so_far_is_there_and_the_stream_is_whole(kept: int) -> None:
    blocks, begun = stream_and_body()
    body, log = lost(begun, b"".join(blocks[:kept]), GONE)
    assert log is not None
    assert log.startswith(b"".join(blocks[:kept]))
    stream = events(log)
    response = check_order(stream)
    assert response == json.loads(body)
    assert (response["status"], response["error"]["message"]) == ("failed", GONE)
    said = "".join(e.get("delta", "") for e in events(b"".join(blocks[:kept]) + DONE))
    assert texts(response) == said
    assert "in_progress" not in [item["status"] for item in response["output"]]
    for after in range(len(stream) - 1):
        assert replay(body, log, after, GONE) == b"".join(
            block + b"\n\n" for block in log.split(b"\n\n")[after + 1 : -1]
        )
    for after in (len(stream) - 1, len(stream) + 7):
        (last,) = events(replay(body, log, after, GONE))
        assert (last["type"], last["sequence_number"]) == ("response.failed", after + 1)
        assert last["response"] == response


def test_one_that_had_ended_has_ended() -> None:
    blocks, begun = stream_and_body()
    log = b"".join(blocks)
    body, same = lost(begun, log, GONE)
    assert same == log
    assert json.loads(body)["status"] == "completed"
    assert replay(body, log, len(blocks) - 2, GONE) == DONE


def test_without_a_log_there_is_the_object_alone() -> None:
    body, log = lost(stream_and_body()[1], None, GONE)
    assert log is None
    assert json.loads(body)["status"] == "failed"
    assert check_order(events(replay(body, None, None, GONE)))["output"] == []

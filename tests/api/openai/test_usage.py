"""Usage details of drafted tokens: there when tokens were drafted, never guessed."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.common import UsageCounter, encode, usage_of
from ovserve.llm.output import Completion
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.request import Delta


def usage(*deltas: Delta) -> tuple[Any, Any]:
    """Of the whole answer, and at the end of its stream."""
    parser, completion, meter = OutputParser(), Completion(), UsageCounter()
    for delta in deltas:
        parsed = parser.feed(delta)
        completion.add(parsed)
        meter.add(parsed)
    return tuple(msgspec.json.decode(encode(one)) for one in map(usage_of, (completion, meter)))  # type: ignore[return-value]


def details(*deltas: Delta) -> dict[str, int]:
    whole, streamed = usage(*deltas)
    assert whole == streamed
    found: dict[str, int] = whole["completion_tokens_details"]
    return found


def test_plain_decoding_has_none() -> None:
    assert details(Delta("a", 1), Delta("b", 1, "stop")) == {"reasoning_tokens": 0}


def test_drafted_tokens_are_accepted_or_rejected() -> None:
    found = details(Delta("a", 1), Delta("b", 3, drafted=5, accepted=2), Delta("c", 1, "stop", drafted=5))
    assert (found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]) == (2, 8)


def test_what_the_engine_does_not_tell_is_left_out() -> None:
    found = details(Delta("a", 4, "stop", accepted=3))
    assert found == {"reasoning_tokens": 0, "accepted_prediction_tokens": 3}

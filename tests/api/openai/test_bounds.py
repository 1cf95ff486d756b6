"""Counting the values of a body in its bytes, and the bounds on what a body may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.api.openai.body import LOOP_BYTES, LOOP_NODES, BodyBounds, check_bounds, count_nodes, is_light
from ovserve.errors import InvalidArgument
from tests.breadth import examples

SMALL = BodyBounds(max_json_nodes=100, max_properties=40, max_tools=4, max_messages=6, max_tensors=3)
TEXTS = st.text(alphabet=st.sampled_from('a,{["\\\\\n\u00e4]:}'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def structure(value: Any) -> int:
    """The `,`, `{` and `[` that JSON needs for a value."""
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(map(structure, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(structure, value))
    return 0


@settings(max_examples=examples(60), deadline=None)
@given(value=VALUES, plain=st.booleans(), indent=st.sampled_from([None, 1]))
def test_values_are_counted_and_texts_are_not(value: Any, plain: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=plain, indent=indent).encode()
    if structure(value) > 0:
        assert count_nodes(body, enough=structure(value) - 1) > structure(value) - 1, (
            "it never counts too few"
        )
    assert count_nodes(body, enough=structure(value)) <= structure(value), "nor too many"


def test_a_text_full_of_commas_is_one_value() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": '1,{["\\' * 100_000}]}).encode()
    check_bounds(body, BodyBounds())
    assert not is_light(body), "what it is only shows when its strings are taken out"
    assert count_nodes(body, 50) == 5


def test_a_slice_may_end_inside_of_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    value = [{"a,": 'x"{,"', "b": [1, 2, "[,"]}] * 30
    monkeypatch.setattr("ovserve.api.openai.body.SCAN_SLICE", 7)
    assert count_nodes(json.dumps(value).encode(), structure(value)) == structure(value)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields


@pytest.mark.parametrize(
    ("body", "param", "option", "limit"),
    [
        (chat(tools=[{}] * 5), "tools", "max_tools", 4),
        (chat(messages=[{}] * 7), "messages", "max_messages", 6),
        ({"model": "m", "input": [{}] * 7}, "input", "max_messages", 6),
        ({"model": "m", "text": ["a"] * 7}, "text", "max_messages", 6),
        ({"model": "m", "tokens": [[1]] * 7}, "tokens", "max_messages", 6),
        ({"inputs": [{}] * 4}, "inputs", "max_tensors", 3),
        ({"inputs": [], "outputs": [{}] * 4}, "outputs", "max_tensors", 3),
        (chat(metadata={str(i): "v" for i in range(60)}), "metadata", "max_properties", 40),
        (chat(tools=[{"x": [0] * 50}]), "tools", "max_properties", 40),
        (chat(**{str(i): 1 for i in range(50)}), None, "max_properties", 40),
        ({"model": "m", "text": {"format": [0] * 50}}, "text", "max_properties", 40),
        (chat(messages=[{"content": [{}] * 101}]), None, "max_json_nodes", 100),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_error_names_field_bound_and_numbers(
    body: dict[str, Any], param: str | None, option: str, limit: int, indent: int | None
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_bounds(json.dumps(body, indent=indent).encode(), SMALL)
    assert caught.value.param == param
    assert f"accepts at most {limit} (--{option})" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        chat(tools=[{}] * 4),
        chat(messages=[{}] * 6),
        {"model": "m", "tokens": list(range(60))},
        {"inputs": [{"data": [0.5] * 60}]},
        chat(messages=[{"content": [{}] * 40}]),
        chat(metadata={str(i): "v" for i in range(30)}),
    ],
)
def test_what_is_at_a_bound_is_accepted(body: dict[str, Any]) -> None:
    check_bounds(json.dumps(body).encode(), SMALL)


def test_what_a_coding_agent_sends_is_within_the_defaults() -> None:
    parameter = {"type": "string", "description": "what it is for", "enum": ["a", "b"]}
    schema = {
        "type": "object",
        "properties": {f"p{i}": parameter for i in range(10)},
        "required": ["p1", "p2"],
    }
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "description": "d", "parameters": schema}}
        for i in range(200)
    ]
    call = {"id": "c", "type": "function", "function": {"name": "f1", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x" * 2000},
    ]
    check_bounds(json.dumps(chat(tools=tools, messages=turns * 1000)).encode(), BodyBounds())


def test_which_bodies_are_decoded_in_the_loop() -> None:
    assert is_light(b"{}")
    assert is_light(b"[" + b"1," * (LOOP_NODES - 10) + b"1]")
    assert not is_light(b"[" + b"1," * (LOOP_NODES + 10) + b"1]")
    assert not is_light(b'"' + b"a" * (LOOP_BYTES + 1) + b'"')
    image = b'{"url":"data:image/png;base64,' + b"A" * (4 * LOOP_BYTES) + b'"}'
    assert is_light(image), "an image is skipped, not read"

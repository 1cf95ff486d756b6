"""What an error says of the place at fault: members of maps, values of enums; and integers written as floats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.api.kserve.json_body import decode_infer
from ovserve.api.openai.describe import parameters
from ovserve.api.openai.tokenize import decode_detokenize, decode_tokenize
from ovserve.errors import InvalidArgument
from ovserve.http.openapi import OPERATIONS
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.services.inference.administration import change_log_settings

TURNS = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": TURNS},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": TURNS, "max_tokens": 5},
}


def decoded(endpoint: str, **fields: Any) -> Any:
    return ENDPOINTS[endpoint].decode(json.dumps(BODIES[endpoint] | fields).encode()).body


def fault(endpoint: str, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        decoded(endpoint, **fields)
    return caught.value


@pytest.mark.parametrize("count", [1, 2, 5, 16])
@pytest.mark.parametrize("value", [5, "v" * 513, None, ["a"]])
def test_the_metadata_at_fault_is_named(count: int, value: Any) -> None:
    for at in range(count):
        metadata = {f"k{i}": value if i >= at else "fine" for i in range(count)}
        error = fault("responses", metadata=metadata)
        assert error.param == f"metadata.k{at}"
        assert str(error).startswith(f"metadata.k{at}: ")
        assert json.dumps(value)[:60] in str(error)


@pytest.mark.parametrize("key", ["k" * 65, "a.b[0]`" * 10, "key` in `$.metadata" * 4])
def test_the_key_at_fault_is_shown(key: str) -> None:
    error = fault("responses", metadata={"fine": "x", key: "x", "also": "y"})
    assert error.param == "metadata"
    assert key[:60] in str(error)
    assert "64" in str(error)
    assert "`$." not in str(error).replace(key[:80], "")


def test_a_key_is_shown_as_it_is() -> None:
    error = fault("responses", metadata={"a.b[0]` in `$.x": 5})
    assert error.param == "metadata.a.b[0]` in `$.x"
    assert str(error).endswith("expected `str`, got 5")


def enums() -> list[tuple[str, str, list[str]]]:
    """Of every endpoint's own fields: those whose schema is an enum of texts."""
    found = []
    for operation in OPERATIONS:
        if operation.name in BODIES:
            for row in parameters(operation):
                values = row.schema.get("enum")
                if values and row.status != "rejected" and "[]" not in row.name:
                    found.append((operation.name, row.name, values))
    return found


def test_there_are_enums() -> None:
    names = {(endpoint, name) for endpoint, name, _ in enums()}
    assert {("responses", "truncation"), ("responses", "reasoning.effort")} <= names
    assert ("chat/completions", "reasoning_effort") in names
    assert ("messages", "tool_choice.type") in names


@pytest.mark.parametrize(("endpoint", "name", "values"), enums())
@pytest.mark.parametrize("given", ["zork", 5, ["auto"]])
def test_an_enum_s_error_lists_its_values(endpoint: str, name: str, values: list[str], given: Any) -> None:
    nested = given
    for step in reversed(name.split(".")):
        nested = {step: nested}
    error = fault(endpoint, **nested)
    assert error.param == name
    assert all(value in str(error) for value in values)
    assert json.dumps(given, separators=(",", ":")) in str(error)


def test_an_enum_deep_in_a_list() -> None:
    part = {"type": "image_url", "image_url": {"url": "x", "detail": "zork"}}
    error = fault("chat/completions", messages=[*TURNS, {"role": "user", "content": [part]}])
    assert error.param == "messages[1].content[0].image_url.detail"
    assert str(error).endswith('expected one of auto, high, low, original, got "zork"')


def test_item_types_are_listed() -> None:
    error = fault("responses", input=[{"type": "zork", "role": "user"}])
    assert error.param == "input[0].type"
    assert "function_call_output" in str(error)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("chat/completions", {"max_tokens": 5.0, "top_k": 2.0, "n": 1.0, "seed": -3.0, "temperature": 1.0}),
        ("chat/completions", {"stop_token_ids": [1.0, 2, 3e0], "logprobs": True, "top_logprobs": 1.0}),
        ("completions", {"prompt": [[1.0, 2], [3.0]], "max_tokens": 1e1}),
        ("completions", {"prompt": [1.0, 2], "logprobs": 1.0}),
        ("responses", {"max_output_tokens": 16.0, "seed": 1e3}),
        ("messages", {"max_tokens": 7.0, "top_k": 5.0}),
    ],
)
def test_a_float_without_a_fraction_is_an_integer(endpoint: str, fields: dict[str, Any]) -> None:
    body = decoded(endpoint, **fields)
    for name, value in fields.items():
        got = getattr(body, name)
        assert got == value
        assert isinstance(got, float) == (name == "temperature")
        flat = (
            [x for row in got for x in (row if isinstance(row, list) else [row])] if name == "prompt" else []
        )
        assert all(type(x) is int for x in flat)


@pytest.mark.parametrize("value", [5.5, 1e400, -0.5, 1e30, 5e-1])
def test_other_floats_are_none(value: float) -> None:
    text = "1e400" if value == float("inf") else repr(value)
    body = f'{{"model":"m","messages":[{{"role":"user","content":"a"}}],"max_tokens":{text}}}'
    with pytest.raises(InvalidArgument) as caught:
        ENDPOINTS["chat/completions"].decode(body.encode())
    assert caught.value.param in ("max_tokens", None)


def test_the_first_fault_after_a_float_is_still_named() -> None:
    error = fault("chat/completions", max_tokens=5.0, n=1.5)
    assert error.param == "n"
    assert "1.5" in str(error)
    error = fault("responses", max_output_tokens=5.0, metadata={"a": "b", "k": 5})
    assert error.param == "metadata.k"


def test_what_a_client_made_up_keeps_its_floats() -> None:
    """Only what the type wants as an integer changes: arguments and schemas are the client's."""
    schema = {"type": "object", "properties": {"x": {"minimum": 5.0}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = decoded("chat/completions", max_tokens=5.0, tools=[tool], chat_template_kwargs={"x": 5.0})
    assert type(body.tools[0]["function"]["parameters"]["properties"]["x"]["minimum"]) is float
    assert type(body.chat_template_kwargs["x"]) is float


def test_tokens() -> None:
    assert decode_detokenize(b'{"tokens":[[1.0,2],[3]]}')[1] == [[1, 2], [3]]
    assert decode_tokenize(b'{"text":"a","max_length":4.0}').body.max_length == 4


def infer(**fields: Any) -> Any:
    tensor = {"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]}
    body = {"inputs": [tensor | fields.pop("tensor", {})], **fields}
    return decode_infer("m", "", json.dumps(body).encode() + b"12345", str(len(json.dumps(body))))


def test_kserve() -> None:
    size = {"parameters": {"binary_data_size": 5.0}, "data": None, "datatype": "UINT8", "shape": [5.0]}
    (tensor,) = infer(tensor=size).request.inputs.values()
    assert tensor.data == b"12345"
    with pytest.raises(InvalidArgument, match="binary_data_size: expected 0 to 5, .* got 4.5"):
        infer(tensor=size | {"parameters": {"binary_data_size": 4.5}})
    size["parameters"] = {"binary_data_size": 5}
    rows = [{"name": "y", "datatype": "INT64", "shape": [2], "data": [1.0, 2]}]
    body = json.dumps({"inputs": rows}).encode()
    assert decode_infer("m", "", body, None).request.inputs["y"].values == [1, 2]
    rows[0]["data"] = [1.0, 2.5]
    with pytest.raises(InvalidArgument, match=r"data\[1\]: expected a whole number, got 2.5"):
        decode_infer("m", "", json.dumps({"inputs": rows}).encode(), None)


def test_binary_data_size_may_be_left_out(subtests: pytest.Subtests) -> None:
    """As in OVMS: docs/binary_input_kfs.md there, and its tests `*_noBinaryDataSizeParameter`."""
    text = {"name": "y", "datatype": "BYTES", "shape": [1]}
    short = {"name": "x", "datatype": "INT16", "shape": [1, 2]}
    cases: list[tuple[list[dict[str, object]], bytes, object]] = [
        ([short], bytes(range(4)), {"x": bytes(range(4))}),
        ([short | {"shape": []}], b"ab", {"x": b"ab"}),
        ([text], b"\2\0\0\0ab", {"y": b"\2\0\0\0ab"}),
        ([short, {**short, "name": "z", "shape": [1]}], b"abcdef", {"x": b"abcd", "z": b"ef"}),
        ([short], b"abc", "binary_data_size: expected 0 to 3, what is left of the body, got 4"),
        ([short | {"shape": [-1, 2]}], b"abc", r"^inputs\[0\].shape: expected 0 or more in each dimension"),
        (
            [short | {"shape": [2**62] * 100_000}],
            b"abc",
            r"^inputs\[0\].shape: expected at most 64 dimensions",
        ),
        ([short | {"shape": [10**4000] * 2}], b"abc", r"^inputs\[0\].shape: expected at most 92233720368547"),
        ([short], b"abcde", "the body has 1 bytes that belong to no input"),
        ([short, text], b"abcd\0\0\0\0", r"inputs\[1\].data: required"),
        ([short], b"", r"inputs\[0\].data: required"),
    ]
    for inputs, tail, expected in cases:
        head = json.dumps({"inputs": inputs}).encode()
        with subtests.test(f"{inputs} {tail!r}"):
            if isinstance(expected, str):
                with pytest.raises(InvalidArgument, match=expected):
                    decode_infer("m", "", head + tail, str(len(head)))
            else:
                tensors = decode_infer("m", "", head + tail, str(len(head))).request.inputs
                assert {name: tensor.data for name, tensor in tensors.items()} == expected


def test_log_level() -> None:
    with pytest.raises(InvalidArgument, match="expected 0 or more, got 1.5"):
        change_log_settings({"log_verbose_level": 1.5})
    with pytest.raises(InvalidArgument, match="log_error"):  # which is looked at after the level
        change_log_settings({"log_verbose_level": 1.0, "log_error": False})

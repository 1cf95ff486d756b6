"""Bodies that cost a server as much as they can. Used by `hostile.py`, and by tests/http/test_large_bodies.py.

Each is a path and a function of a size in JSON values or bytes, so that one shape is tried below, at and above
every bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT, RESPONSES, MESSAGES = "/v3/chat/completions", "/v3/responses", "/v3/messages"
COMPLETIONS, TOKENIZE, DETOKENIZE = "/v3/completions", "/v3/tokenize", "/v3/detokenize"
AZURE = "/chat/completions?api-version=1"
INFER = "/v2/models/m/infer"


@dataclass(frozen=True)
class Hostile:
    """`make(n)` is a body of about n JSON values; of n bytes where `text` is true. With `gzip` it is sent packed."""

    name: str
    path: str
    make: Callable[[int], bytes]
    text: bool = False
    gzip: bool = False


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _chat(**fields: Any) -> bytes:
    return _encode({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]} | fields)


def _object(n: int) -> dict[str, Any]:
    return {f"k{i}": 1 for i in range(n)}


def _properties(n: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(n // 2)}}


def _required(n: int) -> dict[str, Any]:
    names = [f"k{i}" for i in range(n // 3)]
    return {"type": "object", "properties": {name: {} for name in names}, "required": names}


def _tools(n: int, **schema: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{i}", **schema}} for i in range(n // 4)]


def _anthropic(**fields: Any) -> bytes:
    return _encode({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]} | fields)


def _responses(**fields: Any) -> bytes:
    return _encode({"model": "m", "max_output_tokens": 1, "input": "hi"} | fields)


def _calls(n: int) -> list[dict[str, Any]]:
    """A history of calls and their results."""
    call = {"function": {"name": "f", "arguments": "{}"}, "id": "c"}
    pair: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x" * 99},
    ]
    return pair * (n // 12)


def _allowed(n: int, mode: str = "auto", **schema: Any) -> bytes:
    names = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n // 8)]
    return _chat(
        tools=_tools(n // 2, **schema),
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}},
    )


def _schema(schema: Any) -> bytes:
    return _chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


def _references(n: int, keyword: str) -> dict[str, Any]:
    """References that multiply: each definition holds the next one ten times."""
    levels = min(n // 25, 700)
    defs = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 10} for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "string"}}}


def _multiples(n: int) -> dict[str, Any]:
    each = {"type": "integer", "multipleOf": 1993}
    return {"type": "object", "properties": {f"k{i}": {**each, "minimum": i} for i in range(n // 5)}}


def _text(piece: bytes) -> Callable[[int], bytes]:
    def make(n: int) -> bytes:
        return (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"'
            + piece * (n // len(piece))
            + b'"}]}'
        )

    return make


def _infer(n: int) -> list[dict[str, Any]]:
    return [{"name": f"i{i}", "datatype": "INT32", "shape": [1], "data": [1]} for i in range(n // 6)]


def _nested(n: int) -> bytes:
    return b'{"model":"m","messages":' + b"[" * n + b"]" * n + b"}"


def _turns(n: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x"}] * (n // 3)


BODIES: tuple[Hostile, ...] = (
    Hostile("unknown fields", CHAT, lambda n: _chat(**_object(n))),
    Hostile("messages", CHAT, lambda n: _chat(messages=_turns(n))),
    Hostile("content parts", CHAT, lambda n: _chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * (n // 3)}])),
    Hostile("tool calls and results", CHAT, lambda n: _chat(messages=_calls(n))),
    Hostile("arguments of a call", CHAT, lambda n: _chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": _object(n)}}]}])),
    Hostile("wrong role at the end", CHAT, lambda n: _chat(messages=[*_turns(n), {"role": "x", "content": ""}])),
    Hostile("tools", CHAT, lambda n: _chat(tools=_tools(n))),
    Hostile("properties of a tool", CHAT, lambda n: _chat(tools=_tools(4, parameters=_properties(n)))),
    Hostile("required of a tool", CHAT, lambda n: _chat(tools=_tools(4, parameters=_required(n)))),
    Hostile("properties of a forced tool", CHAT, lambda n: _chat(tools=_tools(4, parameters=_properties(n)), tool_choice="required")),
    Hostile("required of a forced tool", CHAT, lambda n: _chat(tools=_tools(4, parameters=_required(n)), tool_choice="required")),
    Hostile("forced tools", CHAT, lambda n: _chat(tools=_tools(min(n, 4096)), tool_choice="required")),
    Hostile("allowed_tools", CHAT, _allowed),
    Hostile("forced allowed_tools", CHAT, lambda n: _allowed(min(n, 8000), "required")),
    Hostile("properties of forced tools", CHAT, lambda n: _chat(tools=_tools(400, parameters=_properties(n // 100)), tool_choice="required")),
    Hostile("properties of strict tools", CHAT, lambda n: _chat(tools=_tools(400, strict=True, parameters=_properties(n // 100)))),
    Hostile("references of a forced tool", CHAT, lambda n: _chat(tools=_tools(4, parameters={"type": "object", "properties": {"p": _references(n, "allOf")}}), tool_choice="required")),
    Hostile("enum of a schema", CHAT, lambda n: _schema({"enum": list(range(n))})),
    Hostile("properties of a schema", CHAT, lambda n: _schema(_properties(n))),
    Hostile("other properties of a schema", CHAT, lambda n: _schema({**_properties(n), "additionalProperties": {"type": "integer"}})),
    Hostile("references of a schema", CHAT, lambda n: _schema(_references(n, "anyOf"))),
    Hostile("allOf of a schema", CHAT, lambda n: _schema(_references(n, "allOf"))),
    Hostile("multiples of a schema", CHAT, lambda n: _schema(_multiples(n))),
    Hostile("pattern of a schema", CHAT, lambda n: _schema({"type": "string", "pattern": "a?" * (n // 2)}), text=True),
    Hostile("template variables", CHAT, lambda n: _chat(chat_template_kwargs=_object(n))),
    Hostile("empty arrays", CHAT, lambda n: _chat(chat_template_kwargs={"a": [[]] * (n // 2)})),
    Hostile("nested arrays", CHAT, _nested),
    Hostile("long numbers", CHAT, lambda n: _chat(chat_template_kwargs={"a": [12345678901234567890123456789] * n})),
    Hostile("a key twice", CHAT, lambda n: _encode({"model": "m", "messages": _turns(n)})[:-1] + b',"model":"m"}'),
    Hostile("not JSON at the end", CHAT, lambda n: _chat(messages=_turns(n))[:-1]),
    Hostile("a stream of messages", CHAT, lambda n: _chat(messages=_turns(n), stream=True)),
    Hostile("Azure: messages", AZURE, lambda n: _chat(messages=_turns(n))),
    Hostile("Azure: unknown fields", AZURE, lambda n: _chat(**_object(n))),
    Hostile("responses: items", RESPONSES, lambda n: _responses(input=_turns(n))),
    Hostile("responses: metadata", RESPONSES, lambda n: _responses(metadata={f"k{i}": "v" for i in range(n)})),
    Hostile("responses: output of a call", RESPONSES, lambda n: _responses(input=[{"type": "function_call_output", "call_id": "c", "output": _object(n)}])),
    Hostile("responses: tools", RESPONSES, lambda n: _responses(tools=[{"type": "function", "name": f"f{i}"} for i in range(n // 3)])),
    Hostile("responses: hosted tools", RESPONSES, lambda n: _responses(tools=[{"type": f"web_search_{i}"} for i in range(n // 2)])),
    Hostile("Anthropic: turns", MESSAGES, lambda n: _anthropic(messages=_turns(n))),
    Hostile("Anthropic: blocks", MESSAGES, lambda n: _anthropic(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * (n // 3)}])),
    Hostile("Anthropic: tools", MESSAGES, lambda n: _anthropic(tools=[{"name": f"f{i}", "input_schema": {}} for i in range(n // 3)])),
    Hostile("Anthropic: input of a tool", MESSAGES, lambda n: _anthropic(messages=[{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": _object(n)}]}])),
    Hostile("Anthropic: count_tokens", MESSAGES + "/count_tokens", lambda n: _anthropic(messages=_turns(n))),
    Hostile("completions: token ids", COMPLETIONS, lambda n: _encode({"model": "m", "max_tokens": 1, "prompt": [1] * n})),
    Hostile("completions: texts", COMPLETIONS, lambda n: _encode({"model": "m", "max_tokens": 1, "prompt": ["a"] * n})),
    Hostile("tokenize: texts", TOKENIZE, lambda n: _encode({"model": "m", "text": ["a"] * n})),
    Hostile("tokenize: messages", TOKENIZE, lambda n: _encode({"model": "m", "messages": _turns(n)})),
    Hostile("detokenize: rows", DETOKENIZE, lambda n: _encode({"model": "m", "tokens": [[1]] * (n // 2)})),
    Hostile("detokenize: ids", DETOKENIZE, lambda n: _encode({"model": "m", "tokens": [1] * n})),
    Hostile("Anthropic: system", MESSAGES, lambda n: _anthropic(system=[{"type": "text", "text": ""}] * (n // 3))),
    Hostile("KServe: inputs", INFER, lambda n: _encode({"inputs": _infer(n)})),
    Hostile("KServe: numbers", INFER, lambda n: _encode({"inputs": [{"name": "x", "datatype": "FP32", "shape": [n], "data": [0.5] * n}]})),
    Hostile("KServe: texts", INFER, lambda n: _encode({"inputs": [{"name": "http", "datatype": "BYTES", "shape": [n], "data": ["a"] * n}]})),
    Hostile("KServe: parameters", INFER, lambda n: _encode({"inputs": [], "parameters": _object(n)})),
    Hostile("KServe: a chat in a tensor", INFER, lambda n: _encode({"inputs": [{"name": "http", "datatype": "BYTES", "shape": [1], "data": [_chat(messages=_turns(n)).decode()]}]})),
    Hostile("plain text", CHAT, _text(b"lorem ipsum dolor "), text=True),
    Hostile("commas in a text", CHAT, _text(b"1,"), text=True),
    Hostile("escapes", CHAT, _text(b"\\n"), text=True),
    Hostile("escaped quotes", CHAT, _text(b'\\"'), text=True),
    Hostile("escaped characters", CHAT, _text(b"\\u00e4"), text=True),
    Hostile("emoji", CHAT, _text("😀".encode()), text=True),
    Hostile("text, packed", CHAT, _text(b"lorem ipsum dolor "), text=True, gzip=True),
    Hostile("escapes, packed", CHAT, _text(b"\\n"), text=True, gzip=True),
    Hostile("data that is not an image", CHAT, lambda n: _chat(x=["data"] * (n // 7)), text=True),
    Hostile("an image", CHAT, lambda n: _chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * n}}]}]), text=True),
)  # fmt: skip

"""Tools for a model whose chat template does not support them: described in the system message, as text.

The graph's option `generic_tool_prompt` enables it. The form is that of
Hermes, which most models have seen and which the tool parser `hermes3` reads: calls between
<tool_call> and </tool_call>, results between <tool_response> and </tool_response> in a user turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

PARSER = "hermes3"  # the tool parser for the requested format

_HEAD = """\
# Tools

You may call functions to help with the request. Each line between <tools> and </tools> is a function in JSON:
<tools>
"""
_TAIL = """
</tools>

To call a function, answer with a JSON object of its name and its arguments between <tool_call> and \
</tool_call>, once for each call:
<tool_call>
{"name": "the function's name", "arguments": {"the parameter's name": "its value"}}
</tool_call>"""


def describe(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, results: bool = True
) -> Sequence[Mapping[str, Any]]:
    """Return the messages with the tools in them, and with calls of the history as text, as are their
    `results`."""
    if not tools and not any(m.get("tool_calls") or (results and m["role"] == "tool") for m in messages):
        return messages
    described: list[dict[str, Any]] = []
    for answers, group in groupby(messages, lambda message: results and message["role"] == "tool"):
        if answers:
            _add_results(described, [str(message.get("content") or "") for message in group])
        else:
            described += [_with_calls(message) for message in group]
    return _with_tools(described, tools) if tools else described


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _HEAD + "\n".join(lines) + _TAIL
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [first | {"content": f"{first.get('content') or ''}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(message)
    calls = plain.pop("tool_calls", None) or []
    texts = [str(plain.get("content") or "")] + [_call(call["function"]) for call in calls]
    return plain | {"content": "\n".join(text for text in texts if text)} if calls else plain


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text or "{}"}}}\n</tool_call>'


def _add_results(messages: list[dict[str, Any]], texts: list[str]) -> None:
    """Add the results of one turn's calls as one user turn: some templates require alternating turns."""
    results = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)
    last = messages[-1] if messages else {}
    if last.get("role") == "user" and str(last.get("content", "")).endswith("</tool_response>"):
        last["content"] += "\n" + results
    else:
        messages.append({"role": "user", "content": results})

"""Custom tools, whose input is text, and tools in a namespace: both reach the model as functions.

A custom tool is a function with one argument, `input`. Its calls become the text again, while they stream.
A tool in a namespace is offered as `shown_name` says, and its calls carry both names again.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ovserve.api.openai.tools import function_tool
from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.grammar.writer import write

INPUT = "input"
SYNTAXES = ("lark", "regex")
MAX_HEAD = 64  # characters in which `{"input": "` begins

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_TEXT = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class ClientTool(NamedTuple):
    """A tool as the client knows it. One with the label of an MCP server runs in this server."""

    name: str
    namespace: str = ""
    custom: bool = False
    server_label: str = ""
    approval: bool = False  # the client has to approve of each call


def shown_name(namespace: str | None, name: str) -> str:
    """Return the name under which the model is offered a tool."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def custom_function(tool: dict[str, Any], where: str, unenforced: list[str]) -> dict[str, Any]:
    """Return a custom tool, nested as in chat or flat, as a function in chat's form.

    A regex that the compiler can hold is enforced; other grammars are described to the model, and reported in
    `unenforced`. Raises InvalidArgument naming the field.
    """
    at = f"{where}.custom" if "custom" in tool else where
    inner = tool.get("custom", tool)
    if not isinstance(inner, dict):
        raise InvalidArgument(f"{at}: expected an object, got {shortened(repr(inner))}", param=at)
    grammar = _grammar(inner.get("format"), f"{at}.format")
    description = inner.get("description")
    schema: dict[str, Any] = {"type": "string"}
    strict = False
    if grammar is not None:
        syntax, definition = grammar
        note = f"The input follows this {syntax} grammar:\n{definition}"
        description = f"{description}\n\n{note}" if isinstance(description, str) and description else note
        strict = syntax == "regex" and _is_held(definition, f"{at}.format.definition")
        if strict:
            schema["pattern"] = f"^(?:{definition})$"
        else:
            unenforced.append(f"{at}.format:{syntax}")
    function = {
        "name": inner.get("name"),
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {INPUT: schema},
            "required": [INPUT],
            "additionalProperties": False,
        },
        "strict": strict or None,
    }
    return function_tool({"type": "function", **function}, at)


def _grammar(value: Any, where: str) -> tuple[str, str] | None:
    """Return syntax and definition; None for any text."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") not in ("text", "grammar"):
        kind = value.get("type") if isinstance(value, dict) else value
        raise InvalidArgument(
            f"{where}.type: expected text or grammar, got {shortened(repr(kind))}", param=f"{where}.type"
        )
    if value["type"] == "text":
        return None
    inner = value.get("grammar", value)  # chat nests it, responses does not
    syntax, definition = (
        (inner.get("syntax"), inner.get("definition")) if isinstance(inner, dict) else (None, None)
    )
    if syntax not in SYNTAXES:
        raise InvalidArgument(
            f"{where}.syntax: expected one of {', '.join(SYNTAXES)}, got {shortened(repr(syntax))}",
            param=f"{where}.syntax",
        )
    if not isinstance(definition, str) or not definition:
        raise InvalidArgument(
            f"{where}.definition: expected a non-empty string, got {shortened(repr(definition))}",
            param=f"{where}.definition",
        )
    return syntax, definition


def _is_held(pattern: str, where: str) -> bool:
    """Return whether the grammar compiler can enforce a regex. Raises InvalidArgument for a malformed one."""
    try:
        return not write({"type": "string", "pattern": f"^(?:{pattern})$"}, what=where).unenforced
    except InvalidArgument as error:
        raise InvalidArgument(error.message, param=where) from None


def input_arguments(text: str | None) -> str:
    """Return the arguments of a call in the history, whose input the client sends back."""
    return json.dumps({INPUT: text or ""}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """Return the input of a whole call."""
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


class InputReader:
    """Reads the value of `input` from a call's arguments as they arrive.

    Arguments of any other form are the input as they are written, so nothing that the model said is lost.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._inside: bool | None = None  # None: undecided; False: the arguments have another form
        self._ended = False

    def feed(self, piece: str) -> str:
        if self._ended:
            return ""
        self._pending += piece
        if self._inside is None:
            head = _HEAD.match(self._pending)
            if head is not None:
                self._inside, self._pending = True, self._pending[head.end() :]
            elif len(self._pending) > MAX_HEAD:
                self._inside = False
        return self._decoded() if self._inside else ""

    def finish(self) -> str:
        """Return what is left when the call has ended."""
        rest, self._pending = self._pending, ""
        if self._ended or self._inside:
            return "" if self._ended else rest
        self._ended = True
        try:
            value = json.loads(rest)
        except ValueError:
            return rest
        if not isinstance(value, dict) or INPUT not in value:
            return rest
        text = value[INPUT]
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)

    def _decoded(self) -> str:
        out: list[str] = []
        pending, at = self._pending, 0
        while True:
            match = _TEXT.match(pending, at)
            assert match is not None, "the pattern matches an empty text"
            text = match[0]
            end = match.end()
            waits = end == len(pending) or _ESCAPE_BEGUN.fullmatch(pending, end) is not None
            if waits and (half := _HALF_PAIR.search(text)) is not None:
                text, end = text[: half.start()], end - len(half[0])  # its other half follows
            out.append(_plain(text))
            if waits:
                break
            if pending[end] == '"':
                self._ended, end = True, len(pending)
                break
            out.append(pending[end])  # a backslash that begins no escape
            end += 1
            at = end
        self._pending = pending[end:]
        return "".join(out)


def _plain(text: str) -> str:
    decoded: str = json.loads(f'"{text}"', strict=False)
    return decoded

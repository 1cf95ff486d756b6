"""`tools`, `tool_choice` and `parallel_tool_calls` of every dialect: checked, and made one ToolPolicy.

Used by chat, responses and Anthropic's messages, each of which first brings its own spelling into chat's.
A tool is taken nested as in chat or flat as in responses, in both.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import structs

from ovserve.api.openai.operation import REJECTED, Override
from ovserve.errors import InvalidArgument, UnsupportedParameter, shortened
from ovserve.llm.grammar.writer import strictly, write
from ovserve.llm.model import ModelContext
from ovserve.llm.parsing import registry
from ovserve.llm.request import Choice, ToolPolicy

# `tool_choice` as clients send it.
ToolChoice = str | dict[str, Any] | None
CHOICES: tuple[Choice, ...] = ("none", "auto", "required")
SHOWN_NAMES = 20  # of tools, in an error
FIELDS = ("tools", "tool_choice", "parallel_tool_calls")

# As models are shown tools in training; so the prompt is also the same whatever the dialect.
_ORDER = ("name", "description", "parameters")
# Models write a name between markers of many kinds; none of these characters ends one.
_NAME = re.compile(r"[\w.:/-]{1,128}")


def function_tool(tool: Any, where: str) -> dict[str, Any]:
    """One tool in chat's form. Raises InvalidArgument naming the field."""
    if not isinstance(tool, dict):
        raise InvalidArgument.expected(where, "an object", tool)
    if tool.get("type") != "function":
        raise InvalidArgument.expected(f"{where}.type", "'function'", tool.get("type"))
    nested = "function" in tool
    function = tool["function"] if nested else {k: v for k, v in tool.items() if k != "type"}
    at = f"{where}.function" if nested else where
    if not isinstance(function, dict):
        raise InvalidArgument.expected(at, "an object", function)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument.expected(f"{at}.name", "1 to 128 letters, digits, _ . : / or -", name)
    for field, type_, what in (
        ("parameters", dict, "an object, a JSON schema"),
        ("description", str, "a string"),
        ("strict", bool, "true or false"),
    ):
        value = function.get(field)
        if value is not None and not isinstance(value, type_):
            raise InvalidArgument.expected(f"{at}.{field}", what, value)
    if schema := function.get("parameters"):
        function = {**function, "parameters": _of_object(schema, f"{at}.parameters.type")}
    ordered = {field: function[field] for field in _ORDER if field in function} | function
    return {"type": "function", "function": {k: v for k, v in ordered.items() if v is not None}}


def _of_object(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a schema whose type, if any, is object alone, as arguments are; deeper faults are the grammar's
    to find. Clients in Go send "" where there is none."""
    type_ = schema.get("type")
    if not type_:
        return {name: value for name, value in schema.items() if name != "type"}
    if "object" not in (type_ if isinstance(type_, list) else [type_]):
        raise InvalidArgument.at(where, f"arguments are an object, got {_display(type_)}")
    return {**schema, "type": "object"}


def tool_policy(
    tools: Sequence[dict[str, Any]], choice: ToolChoice, parallel: bool | None
) -> ToolPolicy | None:
    """The policy of tools that `function_tool` made; None without tools.

    Raises InvalidArgument for two tools of one name, a malformed choice, and one of a tool that is not there.
    """
    if not tools and choice is None:
        return None
    names = [tool["function"]["name"] for tool in tools]
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidArgument.at("tools", f"{count} functions are called {_display(name)}")
    mode, tool_names, once = _choice(choice, names)
    if not tools:
        if mode == "required":
            raise InvalidArgument.at("tool_choice", "it asks for a call, but there are no tools")
        return None
    callable_names = frozenset(tool_names)
    allowed = tuple(name for name in names if name in callable_names) if mode != "none" else ()
    policy = ToolPolicy(tuple(tools), mode, allowed, parallel is not False and not once)
    return structs.replace(policy, unenforced=tuple(_unenforced(policy)))


def _unenforced(policy: ToolPolicy) -> Iterator[str]:
    """Yield what is not enforced of the functions whose arguments must follow their schema.

    Raises InvalidArgument for a strict function whose schema cannot be enforced."""
    schemas, strict = policy.schemas, policy.strict  # each is made anew from all tools
    for name in policy.names:
        if name not in strict and policy.choice != "required":
            continue
        try:
            schema = schemas[name]
            result = strictly(schema, "tools") if name in strict else write(schema, what="tools", exact=False)
        except InvalidArgument as error:
            reason = error.message.removeprefix("tools: ")
            raise InvalidArgument.at("tools", f"parameters of {name}: {reason}") from None
        yield from (f"tools:{name}:{path}" for path in (*result.unenforced, *result.noted))


def _choice(choice: ToolChoice, names: list[str]) -> tuple[Choice, list[str], bool]:
    """Return what must happen, with which functions, and whether exactly once."""
    if choice is None:
        return "auto", names, False
    if isinstance(choice, str):
        for mode in CHOICES:
            if choice == mode:
                return mode, names, False
        raise InvalidArgument.expected("tool_choice", f"one of {', '.join(CHOICES)} or an object", choice)
    kind = choice.get("type", "function" if "function" in choice else None)
    if kind in ("function", "custom"):
        return "required", [_known_name(choice, names, "tool_choice")], True
    if kind == "allowed_tools":
        return *_allowed(choice, names), False
    raise InvalidArgument.expected("tool_choice.type", "'function', 'custom' or 'allowed_tools'", kind)


def _allowed(choice: dict[str, Any], names: list[str]) -> tuple[Choice, list[str]]:
    inner = choice.get("allowed_tools", choice)  # chat nests it, responses does not
    where = "tool_choice.allowed_tools" if inner is not choice else "tool_choice"
    if not isinstance(inner, dict):
        raise InvalidArgument.expected(where, "an object", inner)
    mode, tools = inner.get("mode", "auto"), inner.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidArgument.expected(f"{where}.mode", "auto or required", mode)
    if not isinstance(tools, list) or not tools:
        raise InvalidArgument.expected(f"{where}.tools", "a non-empty array", tools)
    tool_names = dict.fromkeys(names)
    listed = [_known_name(tool, tool_names, f"{where}.tools[{i}]") for i, tool in enumerate(tools)]
    return ("required" if mode == "required" else "auto"), listed


def _known_name(choice: Any, names: Collection[str], where: str) -> str:
    """The name that a choice has, which must be among `names`."""
    nested = next((n for n in ("function", "custom") if isinstance(choice, dict) and n in choice), None)
    inner = choice[nested] if nested is not None else choice
    name = inner.get("name") if isinstance(inner, dict) else None
    at = f"{where}.name" if nested is None else f"{where}.{nested}.name"
    if not isinstance(name, str) or name not in names:
        raise InvalidArgument.at(at, f"{_display(name)} is not one of the tools: {_listed(names) or 'none'}")
    return name


def _listed(names: Collection[str]) -> str:
    listed = ", ".join(islice(names, SHOWN_NAMES))
    return f"{listed} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else listed


def _display(value: Any) -> str:
    return shortened(repr(value))


def check_model(policy: ToolPolicy | None, model: ModelContext) -> list[str]:
    """Return what this model's form of calls does not enforce of functions that must be called.

    Raises UnsupportedParameter where the model cannot do what the policy asks."""
    if policy is None or not policy.calls:
        return []
    if why := model.lacks_tools:
        raise UnsupportedParameter.at("tools", why)
    dialect = registry.default().tool(model.parsers.tool)
    if policy.choice != "required" or dialect is None or dialect.guide is None:
        return []
    schemas = policy.schemas
    names = [
        f"tools:{name}:{key}" for name in policy.names for key in dialect.guide.lost_keywords(schemas[name])
    ]
    return [name for name in names if name not in policy.unenforced]


def narrow_tools(model: ModelContext) -> dict[str, Override]:
    """Return the changes in capabilities for a model that cannot be given tools."""
    why = model.lacks_tools
    return {} if why is None else dict.fromkeys(FIELDS, Override(status=REJECTED, why=why))


# Custom tools, whose input is text, and tools in a namespace: both reach the model as functions.
#
# A custom tool is a function with one argument, `input`. Its calls become the text again, while they stream.
# A tool in a namespace is offered as `shown_name` says, and its calls carry both names again.


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
    call: str = "function_call"  # the type of the item of its calls in responses
    server_label: str = ""
    approval: bool = False  # the client has to approve of each call


def shown_name(namespace: str | None, name: str) -> str:
    """Return the name under which the model is offered a tool. `functions` is where OpenAI's models see
    functions without a namespace, so clients take both for one."""
    if not namespace or namespace == "functions":
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
        raise InvalidArgument.expected(at, "an object", inner)
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
        raise InvalidArgument.expected(f"{where}.type", "text or grammar", kind)
    if value["type"] == "text":
        return None
    inner = value.get("grammar", value)  # chat nests it, responses does not
    syntax, definition = (
        (inner.get("syntax"), inner.get("definition")) if isinstance(inner, dict) else (None, None)
    )
    if syntax not in SYNTAXES:
        raise InvalidArgument.expected(f"{where}.syntax", f"one of {', '.join(SYNTAXES)}", syntax)
    if not isinstance(definition, str) or not definition:
        raise InvalidArgument.expected(f"{where}.definition", "a non-empty string", definition)
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

"""`functions`, `function_call` and the role `function` of chat: OpenAI's form from before it had tools.

A request in that form becomes one with tools when it is decoded, and `chat_response.py` writes its answer in
that form again. A function is called at most once: the form has no place for more.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.messages import Message, ToolCallItem
from ovserve.api.openai.tools import function_tool, tool_policy
from ovserve.errors import InvalidArgument
from ovserve.llm.tooling import ToolPolicy

CHOICES = ("none", "auto")


def function_policy(
    functions: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None
) -> ToolPolicy | None:
    """The policy of `functions` and `function_call`. Raises InvalidArgument naming them as the client did."""
    tools = [_tool(function, f"functions[{i}]") for i, function in enumerate(functions or ())]
    wanted = _choice(choice, {tool["function"]["name"] for tool in tools})
    try:
        return tool_policy(tools, wanted, parallel=False)
    except InvalidArgument as exc:  # two of one name
        raise InvalidArgument(exc.message.replace("tools:", "functions:"), param="functions") from None


def in_tools_form(messages: list[Message]) -> list[Message]:
    """The same messages with calls and their answers as tools have them. Raises InvalidArgument."""
    made: list[Message] = []
    call_id = None  # of the last call
    for i, message in enumerate(messages):
        if message.function_call is not None:
            if message.tool_calls:
                at = f"messages[{i}].function_call"
                raise InvalidArgument(f"{at}: only allowed without tool_calls", param=at)
            call_id = f"call_{i}"
            calls = [ToolCallItem(message.function_call, call_id)]
            message = msgspec.structs.replace(message, tool_calls=calls, function_call=None)
        elif message.role == "function":
            if not message.name:
                at = f"messages[{i}].name"
                raise InvalidArgument(f"{at}: required, but missing", param=at)
            message = msgspec.structs.replace(message, role="tool", tool_call_id=call_id or f"call_{i}")
        made.append(message)
    return made


def _tool(function: dict[str, Any], where: str) -> dict[str, Any]:
    return function_tool({k: v for k, v in function.items() if k != "function"} | {"type": "function"}, where)


def _choice(given: str | dict[str, Any] | None, names: set[str]) -> str | dict[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given not in CHOICES:
            raise InvalidArgument(
                f"function_call: expected one of {', '.join(CHOICES)} or an object, got {given!r}",
                param="function_call",
            )
        return given
    name = given.get("name")
    if name not in names if isinstance(name, str) else True:
        known = ", ".join(sorted(names)) or "none"
        raise InvalidArgument(
            f"function_call.name: {name!r} is not one of the functions: {known}", param="function_call.name"
        )
    return {"type": "function", "name": name}

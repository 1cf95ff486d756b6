"""ToolPolicy: what the prompt shows, which schemas bind."""

from __future__ import annotations

from typing import Any

from ovserve.llm.request import ToolPolicy


def _tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = (_tool("a", parameters=SCHEMA, strict=True), _tool("b"), _tool("c", strict=True))


def test_only_what_may_be_called_is_shown_in_the_order_given() -> None:
    policy = ToolPolicy(TOOLS, "required", ("c", "a"))
    assert [tool["function"]["name"] for tool in policy.prompt_tools] == ["a", "c"]
    assert policy.calls


def test_none_shows_nothing() -> None:
    policy = ToolPolicy(TOOLS, "none")
    assert not policy.calls
    assert (policy.prompt_tools, policy.strict, policy.schemas) == ([], frozenset(), {})


def test_schemas_and_strict_are_those_of_callable_functions() -> None:
    policy = ToolPolicy(TOOLS, "auto", ("a", "b"))
    assert policy.schemas == {"a": SCHEMA, "b": {"type": "object", "properties": {}}}
    assert policy.strict == {"a"}

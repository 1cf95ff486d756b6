"""The tools of a request, in one form for every dialect; and how its answer is parsed.

GenerateRequest carries it. It is read for the prompt (`prompt_tools`), by the output parser, and for the
grammar of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Choice = Literal["none", "auto", "required"]


class ToolPolicy(msgspec.Struct, frozen=True):
    """The tools of a request and what the client demands of their use. Checked: names are unique, `names` are
    among them, a schema is an object.

    `choice` and `names` together say what every spelling of `tool_choice` says:

    | tool_choice                        | choice            | names           | parallel |
    |------------------------------------|-------------------|-----------------|----------|
    | absent, auto                       | auto              | all             | as asked |
    | none                               | none              | ()              | as asked |
    | required, Anthropic's any          | required          | all             | as asked |
    | one function by name               | required          | that one        | False    |
    | allowed_tools, mode auto, required | auto, required    | the listed ones | as asked |

    A function named in `tool_choice` is called exactly once, which is why `parallel` is False then.
    """

    tools: tuple[Mapping[str, Any], ...]  # all of them, in chat's form: {"type", "function": {"name", ...}}
    choice: Choice = "auto"  # none: no calls; required: at least one call; auto: as the model likes
    names: tuple[str, ...] = ()  # the functions that may be called, in the order of `tools`
    parallel: bool = True  # False: one call at most
    unenforced: tuple[str, ...] = ()  # what is not enforced of the schemas of calls that must follow them

    @property
    def prompt_tools(self) -> list[Mapping[str, Any]]:
        """The tools that are put into the prompt: those that may be called, in the form models are trained
        on. `strict` is the server's business."""
        return [
            {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}}
            for tool in self._callable
        ]

    @property
    def _callable(self) -> list[Mapping[str, Any]]:
        names = frozenset(self.names)
        return [tool for tool in self.tools if tool["function"]["name"] in names]

    @property
    def strict(self) -> frozenset[str]:
        """Functions whose arguments must follow their schema also where nothing forces a call."""
        return frozenset(f["name"] for tool in self._callable if (f := tool["function"]).get("strict"))

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """JSON schema of the arguments of each function that may be called. One without parameters takes an
        empty object."""
        nothing = {"type": "object", "properties": {}}
        parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in self._callable}
        return {name: nothing if schema is None else schema for name, schema in parameters.items()}

    @property
    def calls(self) -> bool:
        """Return whether the answer may hold calls."""
        return bool(self.names)


class Parsing(msgspec.Struct, frozen=True):
    """The parsing of an answer: names of dialects in `llm.parsing`, and where the prompt left off."""

    tool: str | None = None
    reasoning: str | None = None
    inside_reasoning: bool = False  # the prompt ends inside the reasoning
    reasoning_closed: bool = False  # the prompt closes the reasoning: an end of it in the answer is text
    end_tokens: tuple[str, ...] = ()  # the model's end-of-turn texts; never a part of the answer

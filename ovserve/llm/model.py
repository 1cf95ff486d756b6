"""What request parsing must know about a model: template, limits, defaults. Made when a graph is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.decoding import Mode


@dataclass(frozen=True)
class ModelContext:
    """One servable's view of its model. `defaults` is generation_config.json as the model ships it."""

    template: ChatTemplate | None = None
    max_length: int | None = None  # tokens of context
    max_tokens_limit: int | None = None  # graph option: cap, and default when the request names none
    best_of_limit: int = 20
    decoding: Mode = "plain"
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def default(self, name: str, fallback: Any) -> Any:
        """A sampling default by priority: generation_config.json, then ours."""
        value = self.defaults.get(name)
        return fallback if value is None else value

    def max_tokens(self, requested: int | None, param: str) -> int | None:
        """How many tokens to ask the engine for; it clamps to the room left. None: all the room.

        Raises InvalidArgument when the client asks for more than the graph allows (limits are inclusive).
        """
        limit = self.max_tokens_limit
        if requested is None:
            default = self.default("max_new_tokens", None)
            known = [n for n in (limit, default) if n is not None]
            return min(known) if known else None
        if limit is not None and requested > limit:
            raise InvalidArgument(
                f"{param}: {requested} is above max_tokens_limit {limit} of this graph", param=param
            )
        return requested

    def parts(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]
    ) -> list[tuple[str, str]]:
        """The prompt by its parts, as text to count: system, history, last message. For length errors."""
        texts: dict[str, list[str]] = {"system": [], "history": [], "last message": []}
        for i, message in enumerate(messages):
            system = message["role"] in ("system", "developer")
            name = "last message" if i == len(messages) - 1 else "system" if system else "history"
            texts[name] += [str(v) for k in ("content", "tool_calls") if (v := message.get(k))]
        return [(name, "\n".join(group)) for name, group in texts.items()]

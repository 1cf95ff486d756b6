"""answer_with_tools: an answer in rounds of text and calls, each of which the server runs.

    async with aclosing(answer_with_tools(llm, messages, cc[self.tools])) as parts:
        async for part in parts:
            ...  # Parsed packets, and a ToolResult for each call

After `max_rounds` of the tools' node, and after a round that found out nothing new, the model has to answer
without calls. It then gets the results as text: a small model that sees its own calls goes on calling.
Leaving the loop ends the generation and the calls that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ovserve.calculators.author_llm import AuthorLlm, Messages
from ovserve.calculators.library.server_tools import Rounds, Toolbox, ToolResult
from ovserve.llm.output import Completion, FoldedChoice, Parsed
from ovserve.llm.request import Sampling


async def answer_with_tools(
    llm: AuthorLlm,
    messages: Messages,
    tools: Toolbox | None,
    *,
    max_tokens: int = 256,
    sampling: Sampling | None = None,
) -> AsyncGenerator[Parsed | ToolResult]:
    """Yield the packets of each round, then the results of its calls. `max_tokens` are of one round."""
    history: list[Any] = list(messages)
    rounds = Rounds(tools.options.max_rounds if tools is not None else 0)
    results: list[ToolResult] = []
    while True:
        may_call = rounds.may_call
        if results and not may_call:
            history = _told(messages, results)
        policy = tools.policy(allowed=may_call) if tools is not None else None
        answer = Completion()
        packets = llm.stream(history, max_tokens=max_tokens, sampling=sampling, tools=policy)
        async with aclosing(packets):
            async for parsed in packets:
                answer.add(parsed)
                yield parsed
        choice = answer.choices[0]
        if tools is None or not may_call or not choice.tool_calls:
            return
        calls = choice.tool_calls[: tools.options.max_calls]
        new = await asyncio.gather(*(tools.run(call) for call in calls))
        history += _turn(choice, new)
        results += new
        rounds.add(new)
        for result in new:
            yield result


def _turn(choice: FoldedChoice, results: list[ToolResult]) -> list[dict[str, Any]]:
    """Return the messages of a round. Calls beyond `max_calls` are left out."""
    calls = [
        {
            "id": r.call.id,
            "type": "function",
            "function": {"name": r.call.name, "arguments": r.call.arguments or "{}"},
        }
        for r in results
    ]
    turn: list[dict[str, Any]] = [{"role": "assistant", "content": choice.content, "tool_calls": calls}]
    return turn + [
        {"role": "tool", "tool_call_id": r.call.id, "name": r.call.name, "content": r.output} for r in results
    ]


def _told(messages: Messages, results: list[ToolResult]) -> list[Any]:
    """Return the conversation with the results in its last message."""
    lines = dict.fromkeys(f"{r.call.name}({r.call.arguments or '{}'}): {r.output}" for r in results)
    last = dict(messages[-1])
    last["content"] = f"{last.get('content') or ''}\n\nKnown facts:\n" + "\n".join(lines)
    return [*messages[:-1], last]

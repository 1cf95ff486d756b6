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

import msgspec

from ovserve.calculators.library.server_tools import Rounds, Toolbox
from ovserve.kinds.text.author_llm import AuthorLlm, Messages
from ovserve.llm.output import Completion, FoldedChoice, Parsed, ToolResult
from ovserve.llm.request import Sampling
from ovserve.llm.tooling import ToolPolicy


async def answer_with_tools(
    llm: AuthorLlm,
    messages: Messages,
    tools: Toolbox | None,
    *,
    max_tokens: int = 256,
    sampling: Sampling | None = None,
    client: ToolPolicy | None = None,
    sure: asyncio.Event | None = None,
) -> AsyncGenerator[Parsed | ToolResult]:
    """Yield the packets of each round, then the results of its calls. `max_tokens` are of one round.

    A round that calls a tool of the `client`, who runs it, is the last. No call runs before `sure` is set.
    """
    history: list[Any] = list(messages)
    rounds = Rounds(tools.options.max_rounds if tools is not None else 0)
    results: list[ToolResult] = []
    while True:
        may_call = rounds.may_call
        if results and not may_call:
            history = _with_results(messages, results)
        own = tools.policy(allowed=may_call) if tools is not None else None
        policy = _joined(own, client)
        answer = Completion()
        packets = llm.stream(history, max_tokens=max_tokens, sampling=sampling, tools=policy)
        async with aclosing(packets):
            async for parsed in packets:
                answer.add(parsed)
                yield parsed
        choice = answer.choices[0]
        if tools is None or not may_call or not choice.tool_calls:
            return
        if client is not None and any(call.name in client.names for call in choice.tool_calls):
            return
        if sure is not None:
            await sure.wait()
        calls = choice.tool_calls[: tools.options.max_calls]
        new = await asyncio.gather(*(tools.run(call) for call in calls))
        history += _turn(choice, new)
        results += new
        rounds.add(new)
        for result in new:
            yield result


def _joined(own: ToolPolicy | None, client: ToolPolicy | None) -> ToolPolicy | None:
    """Return both parties' tools. What the client demands counts; of two with one name, its own is shown."""
    if own is None or client is None or not own.calls:
        return client or own
    client_names = {tool["function"]["name"] for tool in client.tools}
    added = tuple(tool for tool in own.tools if tool["function"]["name"] not in client_names)
    names = tuple(name for name in own.names if name not in client_names) if client.choice == "auto" else ()
    return msgspec.structs.replace(client, tools=(*client.tools, *added), names=(*client.names, *names))


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


def _with_results(messages: Messages, results: list[ToolResult]) -> list[Any]:
    """Return the conversation with the results in its last message."""
    lines = dict.fromkeys(f"{r.call.name}({r.call.arguments or '{}'}): {r.output}" for r in results)
    last = dict(messages[-1])
    last["content"] = f"{last.get('content') or ''}\n\nKnown facts:\n" + "\n".join(lines)
    return [*messages[:-1], last]

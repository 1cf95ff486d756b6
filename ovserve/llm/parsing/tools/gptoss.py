"""gptoss: the harmony format: messages with a channel, and a recipient where they are calls. OpenAI gpt-oss.

Of the channels, analysis is reasoning, anything else is for the user. The recipient may stand in the role's
header or in the channel's. Calls of built-in tools that the request did not offer (python, browser) are
neither calls of this API nor for the user, so they count as reasoning.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/gptoss/harmony.cpp
"""

from __future__ import annotations

import re

from ovserve.llm.parsing.core.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.core.framed import call
from ovserve.llm.parsing.core.frames import FramedDialect, Route
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_PREFIX = "functions."


class GptOss(FramedDialect):
    name = "gptoss"
    starters = ("<|start|>", "<|channel|>", "<|message|>")
    enders = ("<|end|>", "<|return|>", "<|call|>")
    guide = Guide(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "",
        trigger="<|channel|>commentary to=functions.",
        single=True,
    )

    def matches(self, template: str) -> bool:
        return "<|channel|>" in template

    def route(self, header: str, recipient: str, tools: Tools | None) -> Route:
        name = recipient.removeprefix(_PREFIX)
        if name and (name != recipient or (tools is not None and name in tools)):
            return Route("call", name)
        channel = _CHANNEL.search(header)
        to_tool = recipient not in ("", "user", "assistant")
        return Route("reasoning" if to_tool or (channel and channel[1] == "analysis") else "content")

    def body(self, cur: Cursor, out: Output, tools: Tools, name: str, stops: Markers) -> Steps[None]:
        yield from call(cur, out, name, stops)

"""Every frame between the server and a template process, on one page. One answer per request, in order.

| frame      | direction       | meaning                                                         |
|------------|-----------------|-----------------------------------------------------------------|
| `Compile`  | to the process  | keep this template under a number; probe it                     |
| `Compiled` | from it         | what the template expects of its messages                       |
| `Render`   | to the process  | render a prompt from a conversation                             |
| `Part`     | from it         | a part of a long prompt; any number of them come before the end |
| `Rendered` | from it         | the end of the prompt, or all of it                             |
| `Refused`  | from it         | it does not compile or render; in the template's words          |
"""

from __future__ import annotations

import msgspec

from ovserve.llm.prompt.chat_template import ChatTemplate
from ovserve.llm.prompt.expectations import Expectations


class Compile(msgspec.Struct, frozen=True, tag=True):
    number: int
    template: ChatTemplate


class Render(msgspec.Struct, frozen=True, tag=True):
    number: int
    conversation: bytes  # JSON: tools' schemas hold integers beyond 64 bits, which msgpack lacks


class Compiled(msgspec.Struct, frozen=True, tag=True):
    expects: Expectations


class Part(msgspec.Struct, frozen=True, tag=True):
    text: str


class Rendered(msgspec.Struct, frozen=True, tag=True):
    prompt: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    message: str
    param: str | None = None


Question = Compile | Render
RenderResult = Compiled | Rendered | Refused
Frame = Part | RenderResult

"""A template process: `python -m ovserve.sandbox.templates.worker FD SECONDS BYTES`.

It handles one request at a time, within SECONDS and BYTES (`sandbox/base.py`). See `pool.py` for why.
"""

from __future__ import annotations

import sys

import msgspec

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.prompt.chat_template import Conversation
from ovserve.llm.prompt.template import CompiledTemplate
from ovserve.sandbox.base import answer_all
from ovserve.sandbox.templates.messages import (
    Compile,
    Compiled,
    Frame,
    Part,
    Question,
    Refused,
    Render,
    Rendered,
    RenderResult,
)

PART = (
    1 << 20
)  # characters; the server decodes 31 MB of emoji in 60 ms, and handles other events between parts
MAX_PROMPT = 64 * 1024 * 1024  # characters; no context is that long

_conversation = msgspec.json.Decoder(Conversation)


class Worker:
    def __init__(self) -> None:
        self._templates: dict[int, CompiledTemplate] = {}

    def answer(self, question: Question) -> RenderResult:
        try:
            if isinstance(question, Compile):
                compiled = CompiledTemplate(question.template)
                self._templates[question.number] = compiled
                return Compiled(compiled.expects)
            return self._render(question)
        except LoadError as error:
            return Refused(error.reason)
        except InvalidArgument as error:
            return Refused(error.message, error.param)
        except MemoryError:
            return Refused("the chat template needs too much memory for these messages")

    def _render(self, question: Render) -> RenderResult:
        conversation = _conversation.decode(question.conversation)
        template = self._templates.get(question.number)
        if template is None:
            return Refused("the chat template compiled at load, but no longer does")
        prompt = template.render(conversation)
        if len(prompt) > MAX_PROMPT:
            return Refused(
                f"the chat template made a prompt of {len(prompt)} characters from these messages; "
                f"at most {MAX_PROMPT} are allowed",
                conversation.param,
            )
        return Rendered(prompt)


def in_parts(result: RenderResult) -> list[Frame]:
    """Split a long prompt over several frames."""
    if not isinstance(result, Rendered) or len(result.prompt) <= PART:
        return [result]
    *first, last = (result.prompt[at : at + PART] for at in range(0, len(result.prompt), PART))
    return [*map(Part, first), Rendered(last)]


def main(argv: list[str]) -> int:
    worker = Worker()
    return answer_all(argv, Question, lambda question: in_parts(worker.answer(question)), "template process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))

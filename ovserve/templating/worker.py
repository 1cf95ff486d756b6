"""A template process: `python -m ovserve.templating.worker FD SECONDS BYTES`, started by `pool.py` alone.

One question at a time, until end of file. Each has SECONDS of time, after which the kernel ends the process
(an alarm nobody handles), also when the server is gone, and BYTES of address space. See `pool.py` for why.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys

import msgspec

from ovserve.engine.frames import Channel, FrameError
from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.chat_template import Conversation
from ovserve.llm.template import CompiledTemplate
from ovserve.templating.messages import Answer, Compile, Compiled, Question, Refused, Render, Rendered

MAX_PROMPT = 64 * 1024 * 1024  # characters; no context is that long

_conversation = msgspec.json.Decoder(Conversation)


class Worker:
    def __init__(self) -> None:
        self._templates: dict[int, CompiledTemplate] = {}

    def answer(self, question: Question) -> Answer:
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

    def _render(self, question: Render) -> Answer:
        conversation = _conversation.decode(question.conversation)
        template = self._templates.get(question.number)
        if template is None:
            return Refused("the chat template, which compiled at load, does not any more")
        prompt = template.render(conversation)
        if len(prompt) > MAX_PROMPT:
            return Refused(
                f"the chat template made a prompt of {len(prompt)} characters of these messages, "
                f"at most {MAX_PROMPT} are allowed",
                conversation.param,
            )
        return Rendered(prompt)


def main(argv: list[str]) -> int:
    descriptor, seconds, memory = int(argv[1]), float(argv[2]), int(argv[3])
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the server ends us by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel: Channel[Question] = Channel(socket.socket(fileno=descriptor), Question)
    worker = Worker()
    try:
        while True:
            for question in channel.receive(block=True):
                signal.setitimer(signal.ITIMER_REAL, seconds)
                answer = worker.answer(question)
                signal.setitimer(signal.ITIMER_REAL, 0)
                channel.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except FrameError as error:
        print(f"template process: {error}", file=sys.stderr)  # noqa: T201
        return 65  # EX_DATAERR


if __name__ == "__main__":
    sys.exit(main(sys.argv))

"""The conversations of helper processes, which have a tokenizer and no model. Each does one thing at a time,
and is deaf meanwhile.

One tokenises long texts. The other compiles grammars on trial; the kernel bounds what one may take:

- CPU time, by a timer of the process that sends SIGPROF. No one handles that, so the process ends by it.
- Memory, by RLIMIT_DATA. Where that is reached the compiler raises, or the process ends.
- The stack, of which it has half of what an engine has. A grammar nested so deep that its compilation just
  fits would else end the engine, whose compilation begins a few frames deeper.

A process that has grown much by one grammar ends after it, because the compiler gives nothing back.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.engine.host.memory import resident
from ovserve.engine.protocol import messages
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.specs import Facts, GrammarSpec, TokenizerSpec
from ovserve.errors import OvserveError, ResourceExhausted
from ovserve.llm.grammar.constraint import structural_tag
from ovserve.llm.grammar.cost import TOO_MUCH_MEMORY

if TYPE_CHECKING:
    from ovserve.engine.worker.steps import Tokenizer

TRIAL_MEMORY = 512 << 20  # bytes beyond what the process holds when it is ready
GROWN_BYTES = 128 << 20  # then it ends
USUAL_STACK = 8 << 20  # bytes, where the system sets no limit
TOKENIZER_NICENESS = 5  # the engine's steps come first

Conversation = Callable[[Channel[messages.ToEngine]], int]  # returns the exit code of the process
Answer = messages.Tokenized | messages.Detokenized | messages.Compiled | messages.Failed


def load_tokenizer(spec: TokenizerSpec) -> Conversation:
    """Raises LoadError."""
    os.nice(TOKENIZER_NICENESS)
    tokenizer: Tokenizer
    if spec.scripted:
        from ovserve.kinds.text.worker.scripted import words_of

        tokenizer = words_of(spec.model_path)
    else:
        from ovserve.kinds.text.worker.genai.text import open_text

        tokenizer = open_text(spec, spec.facts)
    return partial(_converse, answer=partial(_tokenize, tokenizer))


def load_grammars(spec: GrammarSpec) -> Conversation:
    """Raises LoadError."""
    os.nice(spec.niceness)  # of all threads, which the compiler starts below
    if spec.scripted:
        from ovserve.kinds.text.worker.scripted import prover
    elif spec.paged:
        from ovserve.kinds.text.worker.paged.grammars import prover
    else:
        from ovserve.kinds.text.worker.genai.grammar import prover
    prove = prover(spec.model_path)

    def converse(channel: Channel[messages.ToEngine]) -> int:
        _bound()
        return _converse(channel, partial(_prove, prove), resident(os.getpid()) + GROWN_BYTES)

    return converse


def _converse(
    channel: Channel[messages.ToEngine],
    answer: Callable[[messages.ToEngine], Answer],
    most_bytes: float = float("inf"),
) -> int:
    channel.send(messages.Ready.of(Facts()))
    while True:
        for message in channel.receive(block=True):
            if isinstance(message, messages.Stop):
                return 0
            channel.send(answer(message))
            if resident(os.getpid()) > most_bytes:
                return 0


def _tokenize(tokenizer: Tokenizer, message: messages.ToEngine) -> Answer:
    if not isinstance(message, messages.Tokenize | messages.Detokenize):
        raise FrameError("this process only tokenises")
    try:
        if isinstance(message, messages.Detokenize):
            texts = tokenizer.detokenize(message.ids, message.skip_special_tokens, message.escaped)
            return messages.Detokenized(message.id, texts)
        rows = tokenizer.tokenize(message.texts, message.add_special_tokens)
    except OvserveError as error:
        return messages.Failed(message.id, error.kind, error.message, error.param)
    if message.packed:
        return messages.Tokenized(message.id, [], [array("i", row).tobytes() for row in rows])
    return messages.Tokenized(message.id, rows)


def _prove(prove: Callable[[str], str], message: messages.ToEngine) -> Answer:
    """`prove` says what is wrong with a structural tag, or ""; ResourceExhausted where it takes too long."""
    if not isinstance(message, messages.Compile):
        raise FrameError("this process only proves grammars")
    before = resident(os.getpid())
    signal.setitimer(signal.ITIMER_PROF, message.cpu_seconds)
    kind = "invalid_argument"
    try:
        fault = prove(structural_tag(message.format))
    except MemoryError:
        fault = TOO_MUCH_MEMORY
    except ResourceExhausted as error:
        kind, fault = "resource_exhausted", error.message
    signal.setitimer(signal.ITIMER_PROF, 0)
    if fault:
        return messages.Failed(message.id, kind, fault)
    return messages.Compiled(message.id, max(resident(os.getpid()) - before, 0))


def _bound() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stack, most = resource.getrlimit(resource.RLIMIT_STACK)
    half = (USUAL_STACK if stack == resource.RLIM_INFINITY else stack) // 2
    resource.setrlimit(resource.RLIMIT_STACK, (half, most))
    if sys.platform == "linux":  # elsewhere the limit means something else
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = _data() + TRIAL_MEMORY
        resource.setrlimit(
            resource.RLIMIT_DATA, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most)
        )


def _data() -> int:
    """Bytes that RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise OSError("the kernel does not say how much memory this process has")

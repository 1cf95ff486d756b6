"""The conversation of a process that only compiles grammars.

One at a time, and deaf meanwhile. The kernel bounds what one may take:

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
from collections.abc import Callable
from pathlib import Path

from ovserve.engine.host.memory import resident
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.messages import Compile, Compiled, Failed, Ready, Stop, ToEngine
from ovserve.engine.protocol.specs import Facts, GrammarSpec
from ovserve.errors import ResourceExhausted
from ovserve.llm.grammar.constraint import structural_tag
from ovserve.llm.grammar.cost import TOO_MUCH_MEMORY

MEMORY = 512 << 20  # bytes beyond what the process holds when it is ready
GROWN = 128 << 20  # bytes; then it ends
USUAL_STACK = 8 << 20  # bytes, where the system sets no limit


def run(channel: Channel[ToEngine], prove: Callable[[str], str]) -> int:
    """`prove` says what is wrong with a structural tag, or ""; ResourceExhausted where it takes too long."""
    _bound()
    own = resident(os.getpid())
    channel.send(Ready.of(Facts()))
    while True:
        for message in channel.receive(block=True):
            if isinstance(message, Stop):
                return 0
            if not isinstance(message, Compile):
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
            held = resident(os.getpid())
            grown = Compiled(message.id, max(held - before, 0))
            channel.send(Failed(message.id, kind, fault) if fault else grown)
            if held - own > GROWN:
                return 0


def load(spec: GrammarSpec) -> Callable[[str], str]:
    """Raises LoadError."""
    if spec.scripted:
        from ovserve.kinds.text.worker.scripted import prover as scripted_prover

        return scripted_prover(spec.model_path)
    if spec.paged:
        from ovserve.kinds.text.worker.paged.proof import prover as paged_prover

        return paged_prover(spec.model_path)
    from ovserve.kinds.text.worker.genai.proof import prover

    return prover(spec.model_path)


def _bound() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stack, most = resource.getrlimit(resource.RLIMIT_STACK)
    half = (USUAL_STACK if stack == resource.RLIM_INFINITY else stack) // 2
    resource.setrlimit(resource.RLIMIT_STACK, (half, most))
    if sys.platform == "linux":  # elsewhere the limit means something else
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = _data() + MEMORY
        resource.setrlimit(
            resource.RLIMIT_DATA, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most)
        )


def _data() -> int:
    """Bytes that RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise OSError("the kernel does not say how much memory this process has")

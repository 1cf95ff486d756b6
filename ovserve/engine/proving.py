"""The loop of a process that only proves grammars; run by `worker.py` instead of an engine's.

One at a time, and deaf meanwhile: who asked sets the time, and kills (`grammars.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from ovserve.engine.frames import Channel, FrameError
from ovserve.engine.messages import (
    SCRIPT_SUFFIX,
    Compile,
    Compiled,
    EngineFacts,
    EngineSpec,
    Failed,
    Ready,
    Stop,
    ToEngine,
)
from ovserve.llm.constraint import structural_tag


def run(channel: Channel[ToEngine], prove: Callable[[str], str]) -> int:
    """`prove` says what is wrong with a structural tag, or ""."""
    channel.send(Ready(EngineFacts()))
    while True:
        for message in channel.receive(block=True):
            if isinstance(message, Stop):
                return 0
            if not isinstance(message, Compile):
                raise FrameError("this process only proves grammars")
            fault = prove(structural_tag(message.format))
            word = Failed(message.id, "invalid_argument", fault) if fault else Compiled(message.id)
            channel.send(word)


def load(spec: EngineSpec) -> Callable[[str], str]:
    """Raises LoadError."""
    if spec.model_path.endswith(SCRIPT_SUFFIX):
        from ovserve.engine.scripted import prover as scripted_prover

        return scripted_prover(spec.model_path)
    from ovserve.engine.genai.grammar import prover

    return prover(spec.model_path)

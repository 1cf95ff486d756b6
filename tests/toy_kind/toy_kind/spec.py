"""The spec of the toy engine: what the engine process is started with."""

from __future__ import annotations

from typing import ClassVar

from ovserve.engine.protocol.specs import Spec


class CountdownSpec(Spec, frozen=True):
    """Counts down from a number; `model_path` is a text file with the word for zero."""

    kind: ClassVar[str] = "countdown"
    backend: ClassVar[str] = "toy_kind.backend:Countdown"

    step_seconds: float = 0.0


class SharedCountdownSpec(CountdownSpec, frozen=True):
    """The same as a small model, which shares a process with others unless its node says otherwise."""

    kind: ClassVar[str] = "shared_countdown"
    shared: ClassVar[bool] = True

"""Small models for tests of the shared process: each does what its file says, well or badly."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ovserve.engine.protocol.call_backend import Invocation
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError


class SmallSpec(Spec, frozen=True):
    """`model_path` is a file with what happens when it is loaded."""

    kind: ClassVar[str] = "small"
    backend: ClassVar[str] = "tests.engine.hosting.kinds:Small"
    shared: ClassVar[bool] = True

    max_calls: int = 2


class Small:
    def __init__(self, spec: SmallSpec) -> None:
        self.path = spec.model_path
        self.name, _, how = Path(spec.model_path).read_text().partition(" ")
        word, _, number = how.partition(" ")
        match word:
            case "slow":
                time.sleep(float(number))
            case "gated":  # until a file of this name stands beside its own
                while not Path(spec.model_path).with_name(number).exists():
                    time.sleep(0.01)
            case "abort":
                os.abort()
            case "exit":
                os._exit(int(number))
            case "raise":
                raise RuntimeError("a bad model")
            case "refuse":
                raise LoadError("not a model", field="models_path")
            case "large":
                self.memory = bytearray(os.urandom(1 << 20) * int(number))
        self.facts = Facts(engine="small 1.0", max_calls=spec.max_calls)

    def call(self, invocation: Invocation) -> Iterator[Any]:
        match invocation.method:
            case "who":
                yield {"name": self.name, "pid": os.getpid(), "threads": threading.active_count()}
            case "count":
                number, seconds = invocation.arguments(tuple[int, float])
                for i in range(number):
                    time.sleep(seconds)
                    yield i
            case "abort":
                time.sleep(invocation.arguments(float))
                os.abort()
            case "grow":
                self.grown = os.urandom(1 << 20) * invocation.arguments(int)
            case "hang":
                Path(f"{self.path}.hangs").touch()
                time.sleep(invocation.arguments(float))
            case "stop":  # the whole process stands still, as in native code that holds the interpreter
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise RuntimeError("no")
            case "panic":
                raise BaseException("no")  # as of a library in Rust

    def close(self) -> None:
        os.write(1, f"{self.name} is closed\n".encode())

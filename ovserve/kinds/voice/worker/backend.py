"""TextToSpeechBackend: speaks texts sentence by sentence; calls take turns after each one.

The library runs one sentence at a time and cannot be interrupted in it. So a sentence is the unit in which
calls are interleaved, cancelled and answered.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.voice.spec import SPEAK, SpeakArguments, Spoken, TextToSpeechSpec
from ovserve.kinds.voice.worker.encode import encoder_of, installed_formats
from ovserve.kinds.voice.worker.pipeline import Pipeline
from ovserve.llm.sentences import sentences

MAX_CALLS = 8  # that take turns; more wait in the server's queue, which is fair among callers


class Turns:
    """A lock whose waiters get it in the order in which they came; `threading.Lock` has no order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        mine = threading.Event()
        with self._lock:
            if self._taken:
                self._waiting.append(mine)
            else:
                self._taken = True
                mine.set()
        mine.wait()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().set()
                else:
                    self._taken = False


class TextToSpeechBackend:
    def __init__(self, spec: TextToSpeechSpec) -> None:
        began = time.monotonic()
        self._pipeline = Pipeline(spec)
        self._turns = Turns()
        self._reloading = threading.Lock()
        self.facts = msgspec.structs.replace(
            self._pipeline.facts,
            formats=installed_formats(),
            max_calls=MAX_CALLS,
            load_seconds=time.monotonic() - began,
        )

    def call(self, invocation: Invocation) -> Iterator[Result]:
        """Yield `Spoken` per sentence. Raises InvalidArgument for a text of which nothing can be spoken."""
        if invocation.method != SPEAK:
            raise InvalidArgument(f"{invocation.method!r} is not a method of this engine; it has {SPEAK!r}")
        arguments = invocation.arguments(SpeakArguments)
        encoder = encoder_of(arguments.format, self.facts.sample_rate)
        silent = 0
        arrived, spoke = invocation.arrived, False
        for sentence in sentences(self._pipeline.in_words(arguments.text, arguments.language)):
            with self._turns.turn():
                if invocation.cancelled:
                    return
                began = time.monotonic()
                samples = self._pipeline.speak(sentence, arguments.voice, arguments.language, arguments.speed)
                duration = time.monotonic() - began
            if not len(samples):
                silent += 1
                continue
            spoke = True
            seconds = len(samples) / self.facts.sample_rate
            spoken = Spoken(sentence, seconds, duration, began - arrived)
            yield Result(spoken, (encoder.encode(samples),))
            arrived = time.monotonic()
        if not spoke:
            raise InvalidArgument(
                f"input: the model found nothing to speak in it in the language {arguments.language!r}",
                param="input",
            )
        if silent:
            language = arguments.language
            sys.stderr.write(f"{silent} sentences had nothing that can be spoken in {language!r}\n")
        if self._pipeline.has_grown:
            threading.Thread(target=self._reload, name="reload", daemon=True).start()
        yield Result(Spoken(), (encoder.finish(),), last=True)

    def _reload(self) -> None:
        """Load the model again between two sentences. If that fails, the old one stays."""
        if not self._reloading.acquire(blocking=False):
            return
        try:
            with self._turns.turn():
                self._pipeline.reload()
        except LoadError as error:
            sys.stderr.write(f"the model was not loaded again to free memory: {error.message}\n")
        finally:
            self._reloading.release()

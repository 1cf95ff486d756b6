"""Measurements of one kind of model each, per servable: plain numbers, which are kept across reloads.

Those of Python nodes are per node, and those of plain models have OVMS's names.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ovserve.errors import DeadlineExceeded, EngineDead, InvalidArgument, OvserveError
from ovserve.telemetry.histogram import MICROSECONDS, TO_FIRST_TOKEN, TOKENS, Histogram


class TextToSpeechMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.characters = 0  # that were spoken
        self.sentences = 0
        self.audio_seconds = 0.0
        self.busy_seconds = 0.0  # of computing it
        self.first_audio = Histogram(TO_FIRST_TOKEN)  # seconds from the request to its first sentence
        self.turn_seconds = Histogram(TO_FIRST_TOKEN)  # a sentence waits while others are spoken

    def spoke(self, characters: int, audio_seconds: float, seconds: float, waited: float) -> None:
        """Count a sentence."""
        self.sentences += 1
        self.characters += characters
        self.audio_seconds += audio_seconds
        self.busy_seconds += seconds
        self.turn_seconds.observe(waited)


class TensorMetrics:
    """`success` and `fail` are keyed by the labels api, interface and method."""

    def __init__(self) -> None:
        self.current = 0  # requests under way
        self.active = 0  # calls that the engine holds
        self.success: Counter[tuple[str, str, str]] = Counter()
        self.fail: Counter[tuple[str, str, str]] = Counter()
        self.request_us: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(MICROSECONDS))
        self.inference_us = Histogram(MICROSECONDS)
        self.wait_us = Histogram(MICROSECONDS)

    def request(self, api: str, interface: str, method: str) -> _Request:
        """Count a request from here to the end of the block; time those that succeed, by interface."""
        return _Request(self, (api, interface, method))


class _Request:
    __slots__ = ("_began", "_call", "_metrics")

    def __init__(self, metrics: TensorMetrics, call: tuple[str, str, str]) -> None:
        self._metrics, self._call = metrics, call

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._metrics.current += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        metrics, call = self._metrics, self._call
        metrics.current -= 1
        if kind is None:
            metrics.success[call] += 1
            metrics.request_us[call[1]].observe((time.monotonic() - self._began) * 1e6)
        elif issubclass(kind, Exception):  # a client that disconnects is not a failure of the model
            metrics.fail[call] += 1


# Seconds of computing per second of audio.
REAL_TIME = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


class SpeechMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.audio_seconds = 0.0  # of answered requests and parts of others
        self.speech_seconds = 0.0  # of these, what the model has read: pauses are left out
        self.pieces = 0
        self.real_time = Histogram(REAL_TIME)  # per request, its waiting included
        self.open = 0  # requests whose audio is held

    def heard(self, seconds: float, speech: float) -> None:
        """Add a part of a recording."""
        self.audio_seconds += seconds
        if speech:
            self.speech_seconds += speech
            self.pieces += 1


class PythonMetrics:
    """Sums since the server started, across reloads and restarts. `errors` are keyed by node and type."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(TO_FIRST_TOKEN))
        self.errors: Counter[tuple[str, str]] = Counter()
        self.running: Counter[str] = Counter()  # calls, or items of generators, that are waited for

    @contextmanager
    def call(self, node: str) -> Iterator[None]:
        """Enter while a handler computes an answer, or the next item of its generator."""
        began = time.monotonic()
        self.running[node] += 1
        try:
            yield
        except OvserveError as error:
            self._failed(node, error)
            raise
        else:
            self.seconds[node].observe(time.monotonic() - began)
        finally:
            self.running[node] -= 1

    def _failed(self, node: str, error: OvserveError) -> None:
        kinds = ((InvalidArgument, "exception"), (DeadlineExceeded, "timeout"), (EngineDead, "process_ended"))
        found = next((name for kind, name in kinds if isinstance(error, kind)), error.code or error.kind)
        self.errors[node, found] += 1


class ImageMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.images = 0  # that were finished
        self.edited = 0  # of these, made of an image
        self.partial = 0  # unfinished ones that were sent
        self.steps = 0  # of finished images
        self.step_seconds = Histogram(TO_FIRST_TOKEN)  # the mean of each finished image

    def drawn(self, steps: int, seconds: float, *, edited: bool = False) -> None:
        """Count a finished image."""
        self.images += 1
        self.edited += edited
        self.steps += steps
        if steps:
            self.step_seconds.observe(seconds / steps)

    def sent_partial(self) -> None:
        """Count an unfinished image."""
        self.partial += 1


class EncoderMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.inputs = 0  # texts that were embedded
        self.tokens = 0  # of all inputs, without padding
        self.truncated = 0  # inputs that were cut
        self.documents = 0  # ranked
        self.chunks = 0  # pairs of a query and a piece of a document
        self.batch_tokens = Histogram(TOKENS)  # per inference, padding included
        self.run_tokens = 0  # of all inferences, without padding
        self.queue_seconds = Histogram(TO_FIRST_TOKEN)  # in the engine, before the first inference

    def ran(self, padded: Iterable[int], tokens: int, waited: Iterable[float]) -> None:
        """Add the inferences that an engine reports."""
        for size in padded:
            self.batch_tokens.observe(size)
        for seconds in waited:
            self.queue_seconds.observe(seconds)
        self.run_tokens += tokens

"""The step conversation: text generation, in which one step makes a token of every running request.

Each round admits what has arrived (`Admission`), runs one step, and sends one `Steps` message with the new
text of all requests. It ends with Stop, end of file, or a step that raised.

Why one thread: `step()` holds the GIL for the whole forward pass. An output thread would send each step's
text one step late (measured: 30 ms instead of 0.4), so frames are received and sent between steps.

How full the process is, is reported at most every PERIOD, with the messages of the step that is sent anyway,
and once more when it falls idle: a gauge that keeps the last busy moment would show load where there is none.
It is also the sign of life that `client/health.py` goes by: as long as the engine makes steps or compiles,
one comes every PERIOD.

Two kinds of requests wait for a later step, each in the order of arrival:

- The vision part of a model runs when a request is taken in, and all other answers pause for that long;
  docs/images.md explains why it cannot run in parallel to the steps. So at most one request with images is
  taken between two steps.
- What the engine has no room for, such as blocks of its cache, waits until it has, and what came after it
  waits behind it.

Lines of batches wait behind all other prompts. Everything else is taken at once.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.launch import EXIT_STEP_RAISED
from ovserve.engine.protocol.messages import (
    ENGINE_FAILED,
    Abort,
    Accepted,
    Add,
    ClearGrammars,
    Compile,
    Compiled,
    Detokenize,
    Detokenized,
    Failed,
    Ping,
    Pong,
    Ready,
    StepItem,
    Steps,
    Stop,
    ToEngine,
    Tokenize,
    Tokenized,
    Usage,
)
from ovserve.engine.protocol.specs import TextFacts
from ovserve.engine.worker.calls import BatchWindow
from ovserve.errors import OvserveError, sentences_of
from ovserve.llm.grammar.constraint import structural_tag


class Taker(Protocol):
    """The part of an engine that the queue needs."""

    def encode_prompts(self, requests: list[Add]) -> Mapping[int, Any]: ...
    def can_schedule(self, request: Add, encoded: Any) -> bool: ...


class AdmissionQueue:
    def __init__(self, engine: Taker) -> None:
        self._engine = engine
        self._images: deque[Add] = deque()
        self._prompts: deque[Add] = deque()
        self._encoded: dict[int, Any] = {}
        self._seen = False  # a request with images was taken before this step
        self._stalled = False  # the engine has no room for the first request with images

    @property
    def waiting(self) -> bool:
        return bool(self._images or self._prompts)

    @property
    def full(self) -> bool:
        """The next step has no room for those that wait already."""
        return bool(self._prompts)

    def begin(self) -> None:
        """Once between two steps."""
        self._seen = False

    def take(self, messages: Sequence[ToEngine]) -> Iterator[ToEngine]:
        """Return what to do now with waiting requests. The engine is asked for room when the
        next one is asked for, so what was given must have been done by then."""
        texts = [m for m in messages if isinstance(m, Add) and not m.images]
        self._encoded.update(self._engine.encode_prompts(texts))
        yield from self._next_prompts()
        for message in messages:
            if isinstance(message, Add) and message.images:
                self._images.append(message)
            elif isinstance(message, Add):
                self._insert(message)
                yield from self._next_prompts()
            else:
                if isinstance(message, Abort):
                    self._leave(message.id)
                yield message
        if self._images and not self._seen and self._fits_image(self._images[0]):
            self._seen = True
            yield self._images.popleft()

    def encoded(self, add: Add) -> Any:
        """Return the ids of one that was taken, once; None if the engine encodes it."""
        return self._encoded.pop(add.id, None)

    def _insert(self, add: Add) -> None:
        at = len(self._prompts)
        while at and self._prompts[at - 1].batch and not add.batch:
            at -= 1
        self._prompts.insert(at, add)

    def _next_prompts(self) -> Iterator[Add]:
        """Those that the engine has room for, in their order."""
        while self._prompts and not self._is_behind_image(self._prompts[0]) and self._fits(self._prompts[0]):
            yield self._prompts.popleft()

    def _is_behind_image(self, add: Add) -> bool:
        """Return whether an older request with images waits for room, which others would take for good."""
        return self._stalled and bool(self._images) and self._images[0].id < add.id

    def _fits_image(self, add: Add) -> bool:
        first = self._prompts[0] if self._prompts else None
        if first is not None and first.id < add.id and (add.batch or not first.batch):
            return False
        if add.id not in self._encoded:
            self._encoded.update(self._engine.encode_prompts([add]))
        self._stalled = not self._fits(add)
        return not self._stalled

    def _fits(self, add: Add) -> bool:
        return self._engine.can_schedule(add, self._encoded.get(add.id))

    def _leave(self, id_: int) -> None:
        self._images = deque(add for add in self._images if add.id != id_)
        self._prompts = deque(add for add in self._prompts if add.id != id_)
        self._encoded.pop(id_, None)


REPORT_SECONDS = 0.1  # seconds


class UsageClock:
    def __init__(self, read_usage: Callable[[], Usage]) -> None:
        self._read = read_usage
        self._next = 0.0

    def due(self, busy: bool) -> Usage | None:
        if not busy:
            return Usage(cache_bytes=self._read().cache_bytes)  # what was read is of the last step
        return self._read() if self._time() else None

    def heartbeat(self) -> Usage | None:
        """Report while it does something other than steps."""
        return self.due(busy=False) if self._time() else None

    def _time(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + REPORT_SECONDS
        return True


COMPILE_POLL = 0.002  # seconds between two checks of a compilation, when there is nothing else to do


class Tokenizer(Protocol):
    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]: ...
    def detokenize(
        self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool, escaped: bool
    ) -> list[str]: ...


class Grammars(Protocol):
    """They are compiled in parallel to the steps; what has ended is asked for between two of them."""

    @property
    def compiling(self) -> bool: ...
    def compile(self, id_: int, structural_tag: str, *, validated: bool = False) -> None: ...
    def compiled(self) -> list[Compiled | Failed]: ...
    def clear(self) -> None: ...


class Engine(Protocol):
    """The part of an engine that the loop needs."""

    facts: TextFacts

    @property
    def text(self) -> Tokenizer: ...
    @property
    def grammars(self) -> Grammars: ...
    @property
    def busy(self) -> bool: ...
    def live(self) -> list[int]: ...
    def encode_prompts(self, requests: list[Add]) -> Mapping[int, Any]: ...
    def can_schedule(self, request: Add, encoded: Any) -> bool: ...
    def add(self, request: Add, encoded: Any = None) -> Accepted: ...
    def abort(self, request_id: int) -> None: ...
    def step(self) -> None: ...
    def collect(self) -> list[StepItem | Failed]: ...
    def usage(self) -> Usage: ...


def run(channel: Channel[ToEngine], engine: Engine, batch_window: BatchWindow) -> int:
    """Converse until Stop or a step that raises; return the exit code of the process."""
    channel.send(Ready.of(engine.facts))
    usage, admission = UsageClock(engine.usage), Admission(channel, engine, batch_window)
    finished = 0  # requests, in the last step
    while True:
        idle = admission.idle
        if not admission.admit(finished):
            return 0
        if engine.grammars.compiling:
            channel.send(*engine.grammars.compiled())
        if not engine.busy:
            finished = 0
            _report_idle(channel, engine, usage, aborted=not idle)
        elif (outcome := _step(channel, engine)) is None:
            return EXIT_STEP_RAISED
        else:
            finished = _send(channel, outcome, usage.due(engine.busy))


class Admission:
    """Receive and handle messages between two steps, until the next step should begin."""

    def __init__(self, channel: Channel[ToEngine], engine: Engine, batch_window: BatchWindow) -> None:
        self._channel = channel
        self._engine = engine
        self._batch_window = batch_window
        self._queue = AdmissionQueue(engine)

    @property
    def idle(self) -> bool:
        """No request runs and none waits to be admitted."""
        return not self._engine.busy and not self._queue.waiting

    def admit(self, finished: int) -> bool:
        """Handle messages until the next step should begin, asleep while idle; return False after Stop.

        `finished`: requests that ended in the step before."""
        idle = self.idle
        messages = self._receive(idle=idle)
        self._batch_window.begin(idle=idle, finished=finished)
        self._queue.begin()
        while True:
            received = bool(messages)
            for message in self._queue.take(messages):
                if isinstance(message, Stop):
                    return False
                self._handle(message)
            pause = self._batch_window.pause(received=received, full=self._queue.full)
            if not pause:
                return True
            messages = self._channel.receive_within(pause)

    def _receive(self, *, idle: bool) -> Sequence[ToEngine]:
        if idle and self._engine.grammars.compiling:
            return self._channel.receive_within(COMPILE_POLL)
        return self._channel.receive(block=idle)

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Add | Tokenize | Detokenize):
            answer = self._answer(message)
            self._channel.send(answer)
            if isinstance(answer, Accepted) and isinstance(message, Add):
                self._batch_window.admitted(answer.prompt_tokens, last=message.last)
        elif isinstance(message, Compile):
            self._engine.grammars.compile(
                message.id, structural_tag(message.format), validated=message.validated
            )
        elif isinstance(message, ClearGrammars):
            self._engine.grammars.clear()
        elif isinstance(message, Abort):
            self._engine.abort(message.id)
        elif isinstance(message, Ping):
            self._channel.send(Pong())
        else:
            raise FrameError("a second Load")

    def _answer(self, message: Add | Tokenize | Detokenize) -> Accepted | Tokenized | Detokenized | Failed:
        engine = self._engine
        try:
            if isinstance(message, Add):
                return engine.add(message, self._queue.encoded(message))
            if isinstance(message, Tokenize):
                return Tokenized(message.id, engine.text.tokenize(message.texts, message.add_special_tokens))
            return Detokenized(
                message.id, engine.text.detokenize(message.ids, message.skip_special_tokens, message.escaped)
            )
        except OvserveError as error:
            # A text is `messages` or `input` to most clients; who knows its name adds it.
            if error.param == "prompt" and isinstance(message, Add) and isinstance(message.prompt, str):
                error.param = None
            return Failed.of(message.id, error)


def _report_idle(channel: Channel[ToEngine], engine: Engine, usage: UsageClock, *, aborted: bool) -> None:
    """Send the usage of an engine that has nothing to step. `aborted`: its last request was aborted."""
    if aborted:
        channel.send(Steps([], usage.due(busy=False)))
    elif engine.grammars.compiling and (heartbeat := usage.heartbeat()):
        channel.send(Steps([], heartbeat))


def _step(channel: Channel[ToEngine], engine: Engine) -> list[StepItem | Failed] | None:
    """Run one step and return what its requests gained; None if it raised, which ends every request."""
    try:
        engine.step()
        return engine.collect()
    except Exception as error:  # noqa: BLE001  the worker loop border: whatever it was, this engine is done
        traceback.print_exc()
        reason = f"the engine failed in a step: {sentences_of(error)[-1]}"
        channel.send(*(Failed(id_, ENGINE_FAILED, reason) for id_ in engine.live()))
        return None


def _send(channel: Channel[ToEngine], outcome: list[StepItem | Failed], usage: Usage | None) -> int:
    """Send one `Steps` message and the failures; return the number of requests that finished."""
    items = [message for message in outcome if isinstance(message, StepItem)]
    failed = [message for message in outcome if isinstance(message, Failed)]
    channel.send(*([Steps(items, usage)] if items or usage else []), *failed)
    return sum(item.last for item in items)

"""The engine that answers one request at a time: OpenVINO GenAI's LLMPipeline or VLMPipeline, without paged
attention. For devices that have no other (NPU), and for graphs that ask for it (`pipeline_type: LM`, `VLM`).

`generate()` is one blocking call per answer. It runs on a thread here, where it gives up Python's lock, and
its streamer hands every token over to the loop of `worker/steps.py`, which takes them in `step()`. So tokens,
stop strings, questions and aborts are dealt with while the next token is being computed, by the same code as
those of continuous batching. Found by measuring (tests/engine/test_stateful.py):

- A streamer that raises leaves the pipeline unusable, so ours cannot.
- A streamer that says CANCEL ends the call at once; it is asked after each token, not during the prompt.
- An error in the call itself does not affect later ones; a fault of the device may. Either ends this process,
  like an error in a step.

On an NPU a model is compiled for one length of prompt and one of answer, both properties of the device; the
library raises for a longer prompt and ends an answer where the room ends. Other devices have no such
properties.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.model.files import read_model_files, refuse_for_library
from ovserve.engine.protocol.admission import admit, context_limit
from ovserve.engine.protocol.messages import Accepted, Add, Failed, StepItem, Usage
from ovserve.engine.protocol.specs import StatefulTextSpec, TextFacts
from ovserve.errors import Internal, LoadError
from ovserve.kinds.text.worker.decoding import Part, Sequence
from ovserve.kinds.text.worker.genai.facts import engine_facts
from ovserve.kinds.text.worker.genai.grammar import Grammars
from ovserve.kinds.text.worker.genai.options import (
    FINISH,
    generation_config,
    properties,
    sentence,
    to_blame,
    writable,
)
from ovserve.kinds.text.worker.genai.text import Text
from ovserve.kinds.text.worker.genai.vision import VisionInput, tensors

# Weight of what is known when the next prompt ends: prompts of other lengths fade after a few.
EWMA_WEIGHT = 0.5
MAX_PREFILL_SHARE = 0.97  # part of a prompt that counts as computed before its first token has come


class PrefillEstimate:
    """An estimate for an engine that computes one prompt at a time, in one call.

    The speed is that of the prompts before, of which long ones weigh more; the first prompt has no estimate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = 0.0  # of prompts that ended
        self._seconds = 0.0  # and how long they took
        self._prompt = 0  # tokens of the one that is being computed, or 0
        self._began = 0.0

    def begin(self, prompt_tokens: int) -> None:
        self._prompt, self._began = prompt_tokens, self._clock()

    def end(self) -> None:
        """Record that the first token has come; no effect after that."""
        if self._prompt:
            self._tokens = self._tokens * EWMA_WEIGHT + self._prompt
            self._seconds = self._seconds * EWMA_WEIGHT + self._clock() - self._began
            self._prompt = 0

    def remaining_tokens(self) -> int | None:
        """Return the tokens still to be computed, at least 1; None if nothing is known of them."""
        if not self._prompt or not self._seconds:
            return None
        prefilled = (self._clock() - self._began) * self._tokens / self._seconds
        return max(1, round(self._prompt - min(prefilled, MAX_PREFILL_SHARE * self._prompt)))


NPU = "NPU"
PROMPT, RESPONSE = 1024, 128  # the library's own defaults, tokens


def lengths(
    device: str, properties: Mapping[str, object], max_length: int | None
) -> tuple[int | None, int | None]:
    """Tokens of the whole context, and of the prompt alone; None: no limit. `max_length` is the model's."""
    if device != NPU:
        return max_length, None
    prompt = _length(properties, "MAX_PROMPT_LEN", PROMPT)
    room = prompt + _length(properties, "MIN_RESPONSE_LEN", RESPONSE)
    return room if max_length is None else min(room, max_length), prompt


def _length(properties: Mapping[str, object], name: str, default: int) -> int:
    value = properties.get(name, default)
    if type(value) is not int or value < 1:
        raise LoadError(f"{name}: expected a whole number of tokens, got {value!r}", field="plugin_config")
    return value


# Seconds a step waits for a token at most: questions and aborts must not wait for a long prompt.
POLL_SECONDS = 0.05


class StatefulEngine:
    def __init__(self, spec: StatefulTextSpec) -> None:
        began = time.monotonic()
        files = read_model_files(spec.model_path)
        refuse_for_library(spec.model_path, files)
        self._live: dict[int, Sequence] = {}
        self._waiting: deque[_Run] = deque()
        self._running: _Run | None = None
        self._prefill = PrefillEstimate()
        self._thread = ThreadPoolExecutor(1, "generate")
        try:
            if spec.device == NPU and NPU not in openvino.Core().available_devices:
                raise LoadError(f"this machine has no {NPU}, or no driver for one", field="device")
            options = properties(spec)
            max_length, self._prompt_limit = lengths(spec.device, options, files.max_length)
            kind = ov_genai.VLMPipeline if files.vision else ov_genai.LLMPipeline
            with writable(spec.model_path) as path:
                self._pipeline = kind(path, spec.device, **{**options, "ATTENTION_BACKEND": "SDPA"})
            tokenizer, defaults = self._pipeline.get_tokenizer(), self._pipeline.get_generation_config()
            self.facts: TextFacts = engine_facts(
                files, tokenizer, defaults, max_length, 0, time.monotonic() - began
            )
            self.text = Text(tokenizer, self.facts)
            self._vision: VisionInput | None = None
            if files.vision:
                self._vision = VisionInput(self.text.encode, self._answer_seeing, files, self.facts)
                self.facts = self._vision.facts(self.facts)
            self.grammars = Grammars(quiet=lambda: self._running is None)
            with self.text.proving(uses_tokenizer=files.vision):
                self.grammars.attach(self._answer, tokenizer, self.facts.vocab_size)
            self.facts = msgspec.structs.replace(
                self.facts,
                max_length=context_limit(self.facts.max_length, spec.max_model_len),
                compiles_grammars=self.grammars.parallel,
                longest_token=self.text.longest_token(),
            )
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error

    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        return self._running is not None or bool(self._waiting)

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        return {} if self._vision else self.text.encode_prompts(requests)

    def can_schedule(self, request: Add, encoded: openvino.Tensor | None) -> bool:
        return True

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """One that has to wait is accepted too: the server sends all choices of a request together."""
        if request.id in self._live:
            raise Internal(f"request {request.id} is already running")
        sampling = request.sampling
        ids = (self._vision or self.text).encode_prompt(request) if encoded is None else encoded
        prompt_tokens = ids.shape[1]
        max_tokens = admit(prompt_tokens, self.facts.max_length, sampling, self._prompt_limit, "stateful")
        stop_ids = self.text.stop_ids(sampling)
        admitted = self.grammars.admitted
        config = generation_config("stateful", sampling, max_tokens, stop_ids, self.facts, admitted)
        if self._vision is not None:
            text, images = self._vision.text(request), tensors(request.images)
            call = partial(self._pipeline.generate, text, images=images, generation_config=config)
        else:
            call = partial(self._pipeline.generate, ids, config)
        run = _Run(call, max_tokens)
        hidden = self.text.hidden(sampling.skip_special_tokens, sampling.markup)
        run.sequence = Sequence(run, request.id, sampling, prompt_tokens, stop_ids, hidden)
        self._live[request.id] = run.sequence
        self._waiting.append(run)
        self._advance()
        return Accepted(request.id, prompt_tokens, max_tokens)

    def abort(self, request_id: int) -> None:
        if sequence := self._live.pop(request_id, None):
            run: _Run = sequence.handle
            run.streamer.cancelled = True
            if run is not self._running:
                self._waiting.remove(run)

    def step(self) -> None:
        """Returns when the answer under way has gained something, at the latest after POLL. Raises what
        `generate` raised."""
        if self._running is not None:
            self._running.wait(POLL_SECONDS)

    def collect(self) -> list[StepItem | Failed]:
        run = self._running
        if run is None:
            return []
        words: list[StepItem | Failed] = []
        sequence = run.sequence
        if run.has_tokens:
            self._prefill.end()
        if sequence.id in self._live and (part := run.part()) is not None:
            sequence.process([part])
            words += sequence.advance(iter(self.text.decode(sequence.rows())))
            if sequence.finished:
                del self._live[sequence.id]
                run.streamer.cancelled = True  # a stop string, which only we look for
        if run.ended:
            if self._live.pop(sequence.id, None):  # never seen; but every request has one last word
                words.append(Failed(sequence.id, "internal", "the engine lost this request"))
            self._running = None
            self._advance()
        return words

    def usage(self) -> Usage:
        """Usage without a cache: this pipeline's is as large as the current answer."""
        to_prefill = [(run.sequence.id, run.sequence.prompt_tokens) for run in self._waiting]
        if self._running is not None and (remaining := self._prefill.remaining_tokens()) is not None:
            to_prefill.append((self._running.sequence.id, remaining))
        return Usage(len(self._live), int(self._running is not None), to_prefill=tuple(to_prefill))

    def _advance(self) -> None:
        if self._running is None:
            self.grammars.proceed()  # between two answers
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._prefill.begin(self._running.sequence.prompt_tokens)
            self._running.begin(self._thread)

    def _answer(self, ids: openvino.Tensor, config: ov_genai.GenerationConfig) -> ov_genai.PerfMetrics:
        if self._vision is not None:
            return self._vision.answer(config)
        return self._pipeline.generate(ids, config).perf_metrics

    def _answer_seeing(
        self, prompt: str, images: list[openvino.Tensor], config: ov_genai.GenerationConfig
    ) -> ov_genai.PerfMetrics:
        """Wait for the current answer, if there is one: it was aborted, and ends with its next token."""
        call = partial(self._pipeline.generate, prompt, images=images, generation_config=config)
        return self._thread.submit(call).result().perf_metrics


class _Streamer(ov_genai.StreamerBase):  # type: ignore[misc]  # the library has no types
    """Called by the library on its thread: it puts them into `tokens`, and None after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: SimpleQueue[list[int] | None] = SimpleQueue()
        self.cancelled = False

    def write(self, token: int | list[int]) -> ov_genai.StreamingStatus:
        self.tokens.put([token] if isinstance(token, int) else list(token))
        return ov_genai.StreamingStatus.CANCEL if self.cancelled else ov_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass  # not called where `generate` raises


class _Run:
    """One answer: waiting, under way, or ended."""

    sequence: Sequence

    def __init__(self, call: Callable[..., ov_genai.EncodedResults], max_tokens: int) -> None:
        """`call` is the library's, which takes a `streamer` yet."""
        self.streamer = _Streamer()
        self.ended = False
        self._call = call
        self._left = max_tokens or -1
        self._done: Future[ov_genai.EncodedResults] | None = None
        self._new_ids: list[int] = []

    def begin(self, thread: ThreadPoolExecutor) -> None:
        self._done = thread.submit(self._call, streamer=self.streamer)
        self._done.add_done_callback(lambda _: self.streamer.tokens.put(None))

    @property
    def has_tokens(self) -> bool:
        """Return whether tokens have come since the last `part`, so the prompt is computed."""
        return bool(self._new_ids)

    def wait(self, seconds: float) -> None:
        tokens = self.streamer.tokens
        try:
            self._take(tokens.get(timeout=seconds))
            while True:
                self._take(tokens.get_nowait())
        except Empty:
            pass
        if self.ended:
            assert self._done is not None, "it has begun"
            self._done.result()

    def _take(self, ids: list[int] | None) -> None:
        if ids is None:
            self.ended = True
        else:
            self._new_ids += ids

    def part(self) -> Part | None:
        """Return what came since the last call. The finish reason comes with the last token, not after it."""
        ids, self._new_ids = self._new_ids, []
        self._left -= len(ids) if self._left > 0 else 0
        finish = "length" if self._left == 0 else None
        if self.ended and finish is None:
            assert self._done is not None, "it has begun"
            finish = FINISH[self._done.result().finish_reasons[0]]
        return Part(ids, [], 0.0, finish) if ids or finish else None

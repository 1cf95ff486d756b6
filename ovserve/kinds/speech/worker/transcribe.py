"""SpeechBackend: speech to text by OpenVINO GenAI, a piece of audio per call.

A call gets up to a minute of audio, reads the first speech in it up to a pause, and says how far it got. So a
long recording is many calls, between which those of others take their turn.
"""

from __future__ import annotations

import os
import queue
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino_genai as ov_genai

from ovserve.engine.host.device_properties import properties_of
from ovserve.engine.protocol.call_backend import Invocation
from ovserve.errors import InvalidArgument
from ovserve.kinds.speech.files import read_speech_files
from ovserve.kinds.speech.spec import (
    RATE,
    TRANSCRIBE,
    Piece,
    Span,
    SpeechFacts,
    SpeechToTextSpec,
    TextDelta,
    TranscribeArguments,
)
from ovserve.kinds.speech.worker.cutting import Cut, cut
from ovserve.kinds.speech.worker.vad import Samples, VoiceActivity

STREAMS = "NUM_STREAMS"
MOST_TOKENS = 440  # of a piece, special ones and the prompt included: Whisper's decoder has 448 positions
PROMPT_TOKENS = 200  # of the text before; Whisper reads at most 223
MAX_COMPRESSION_RATIO = (
    2.4  # compression ratio above which a text is one that repeats itself, as OpenAI's Whisper has it
)
LOOKED_AT = 400  # characters at the end of a text
SECOND_TEMPERATURE = 0.4  # for what went in circles at 0
SHORT_TEXT = 80  # characters that are too few for a ratio
SEEDS = 2**31
CALLS_AHEAD = 1  # calls whose speech is found while others are read, so that the cores do not wait for it

Say = Callable[[str], bool]  # gets text as it is made; returns whether to stop


class SpeechBackend:
    def __init__(self, spec: SpeechToTextSpec) -> None:
        directory = Path(spec.model_path)
        self._files = read_speech_files(directory)
        properties = properties_of(spec.properties, spec.device)
        count = int(properties.pop(STREAMS, 1))
        if count > 1:
            threads = len(os.sched_getaffinity(0))
            properties.setdefault("INFERENCE_NUM_THREADS", max(1, threads // count))
        if spec.word_timestamps:
            properties["word_timestamps"] = True
        self._pipelines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(count):
            self._pipelines.put(ov_genai.ASRPipeline(directory, spec.device, **properties))
        self._voice = VoiceActivity()
        self._words = spec.word_timestamps
        self.facts = SpeechFacts(
            engine=f"openvino_genai {ov_genai.__version__.partition('-')[0]}",
            max_calls=count + CALLS_AHEAD,
            architecture=self._files.architecture,
            languages=self._files.languages,
            multilingual=self._files.multilingual,
            word_timestamps=spec.word_timestamps,
        )

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if invocation.method != TRANSCRIBE:
            raise InvalidArgument(f"method: expected {TRANSCRIBE}, got {invocation.method}")
        arguments = invocation.arguments(TranscribeArguments)
        audio = np.frombuffer(invocation.blobs[0], "<i2").astype(np.float32) / np.float32(32768)
        cuts = cut(self._voice.probabilities(audio), audio.size, last=arguments.last)
        if not cuts.ranges or invocation.cancelled:
            yield Piece(cuts.consumed)
            return
        with self._pipeline() as pipeline:
            if invocation.cancelled:
                return
            yield from self._recognize(pipeline, invocation, arguments, cuts, cuts.joined(audio))

    @contextmanager
    def _pipeline(self) -> Iterator[Any]:
        pipeline = self._pipelines.get()
        try:
            yield pipeline
        finally:
            self._pipelines.put(pipeline)

    def _recognize(
        self,
        pipeline: Any,
        invocation: Invocation,
        arguments: TranscribeArguments,
        cuts: Cut,
        speech: Samples,
    ) -> Iterator[Any]:
        config = self._config(pipeline, arguments)
        if arguments.stream:
            result = yield from _streamed(pipeline, speech, config, Listener(invocation))
        else:
            result = _generate(pipeline, speech, config, Listener(invocation))
            if repeats(_text(result)) and not arguments.temperature and not invocation.cancelled:
                # The text before may have led it astray; drawn words lead out of a loop.
                again = msgspec.structs.replace(arguments, prompt="", temperature=SECOND_TEMPERATURE)
                other = _generate(pipeline, speech, self._config(pipeline, again), Listener(invocation))
                result = result if repeats(_text(other)) else other
        yield self._piece(result, arguments, cuts, speech)

    def _config(self, pipeline: Any, arguments: TranscribeArguments) -> Any:
        config = pipeline.get_generation_config()
        config.max_length = MOST_TOKENS
        if self._files.is_whisper:
            if self._files.multilingual:
                config.task = "translate" if arguments.translate else "transcribe"
                if arguments.language:
                    config.language = f"<|{arguments.language}|>"
            prompt = _tail(pipeline.get_tokenizer(), arguments.prompt)
            if prompt:
                config.initial_prompt = prompt
            if arguments.hotwords:
                config.hotwords = _tail(pipeline.get_tokenizer(), arguments.hotwords)
            config.return_timestamps = arguments.timestamps
            config.word_timestamps = arguments.words and self._words
        else:
            if arguments.language:
                config.language = arguments.language
            if arguments.prompt:
                config.context = arguments.prompt
        if arguments.temperature:
            config.do_sample = True
            config.temperature = arguments.temperature
            config.rng_seed = int.from_bytes(os.urandom(4), "little") % SEEDS
        return config

    def _piece(self, result: Any, arguments: TranscribeArguments, cuts: Cut, speech: Samples) -> Piece:
        seconds = speech.size / RATE
        chunks = (result.chunks or [[]])[0]
        words = (result.words or [[]])[0]
        return Piece(
            cuts.consumed,
            _text(result),
            result.languages[0].strip("<|>") if result.languages else arguments.language,
            seconds,
            [_span(chunk, cuts, seconds) for chunk in chunks] if arguments.timestamps else [],
            [_span(word, cuts, seconds) for word in words] if arguments.words else [],
        )


class Listener:
    """Gets text as it is made. It asks to stop when the caller has left, or the text goes in circles."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._end = ""
        self.left = threading.Event()

    def __call__(self, text: str) -> bool:
        self._end = (self._end + text)[-LOOKED_AT:]
        return self.left.is_set() or self._invocation.cancelled or repeats(self._end)


def _text(result: Any) -> str:
    return result.texts[0] if result.texts else ""


def _span(chunk: Any, cuts: Cut, seconds: float) -> Span:
    """The library ends an unfinished chunk at -1."""
    end = seconds if chunk.end_ts < 0 else min(chunk.end_ts, seconds)
    return Span(cuts.seconds(min(chunk.start_ts, end)), cuts.seconds(end), chunk.text)


def _generate(pipeline: Any, speech: Samples, config: Any, say: Say) -> Any:
    """Run the model. `say` never raises, and is called on the library's terms."""
    stop, go = ov_genai.StreamingStatus.CANCEL, ov_genai.StreamingStatus.RUNNING
    return pipeline.generate(speech.tolist(), config, lambda text: stop if say(text) else go)


def _streamed(
    pipeline: Any, speech: Samples, config: Any, listener: Listener
) -> Generator[TextDelta, None, Any]:
    """Yield text as it is made, and return the result. The library runs on a thread of its own, which has
    ended when this has."""
    texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    outcome: list[Any] = []

    def say(text: str) -> bool:
        texts.put(text)
        return listener(text)

    def run() -> None:
        try:
            outcome.append(_generate(pipeline, speech, config, say))
        except Exception as error:  # noqa: BLE001  raised below, on the thread of the call
            outcome.append(error)
        texts.put(None)

    thread = threading.Thread(target=run, name="transcribe")
    thread.start()
    try:
        while (text := texts.get()) is not None:
            if text:
                yield TextDelta(text)
    finally:
        listener.left.set()
        thread.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _tail(tokenizer: Any, text: str) -> str:
    """Return the end of a text that fits into a prompt."""
    text = text.strip()
    if len(text) <= PROMPT_TOKENS:  # a token has at least a character, nearly always
        return text
    ids = tokenizer.encode(text[-8 * PROMPT_TOKENS :], add_special_tokens=False).input_ids.data
    tail = ids.reshape(-1)[-PROMPT_TOKENS:].tolist()
    return str(tokenizer.decode(tail)).strip("\N{REPLACEMENT CHARACTER}").strip()


def repeats(text: str) -> bool:
    """Return whether the end of a text repeats itself, as a recognizer's does that has lost its way."""
    text = text[-LOOKED_AT:]
    data = text.encode()
    return len(text) > SHORT_TEXT and len(data) / len(zlib.compress(data)) > MAX_COMPRESSION_RATIO

"""SpeechBackend: speech to text by OpenVINO GenAI, a piece of audio per call.

A call gets up to a minute of audio, reads the first speech in it up to a pause, and says how far it got. So a
long recording is many calls, between which those of others take their turn.

Audio is cut at silence into what the recognizer reads at once: speech, at most 28 s of it. Whisper reads 30 s
at a time, and invents text where there is none. So it gets speech alone: long pauses are left out, and times
in the joined speech are mapped back. Where speech goes on for longer than 28 s, the cut is at the longest
pause of the second half, or else where speech is least likely.

Voice activity is the probability of speech in each 32 ms of audio, by Silero's model in OpenVINO. The model,
silero_vad_16k_sequence.onnx next to this file, takes all windows at once: 28 s of audio cost 20 ms of one
core (2026-11-22, EPYC with avx512), so no audio is read twice for fear of the cost. Source:
https://github.com/snakers4/silero-vad 6.2.3 (MIT, its licence is next to this file), read 2026-11-22
"""

from __future__ import annotations

import os
import queue
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from numpy.typing import NDArray

from ovserve.engine.host.cpu import device_properties, properties_of
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.engine.protocol.specs import Facts
from ovserve.errors import InvalidArgument
from ovserve.kinds.speech.spec import (
    ACTIVITY,
    TRANSCRIBE,
    VAD_FRAME,
    VAD_MODEL,
    Piece,
    Span,
    SpeechFacts,
    SpeechToTextSpec,
    TextDelta,
    TranscribeArguments,
    VoiceActivitySpec,
    read_speech_files,
)
from ovserve.llm.audio import SAMPLES_PER_SECOND

NARROW_HZ = 4800  # a telephone has nothing above it, whatever filter made 16 kHz of it
NOTHING_RMS = 2 / 32768  # the rounding of 16 bits
FRAME, CONTEXT, STATE = VAD_FRAME, 64, 128  # samples, samples of the frame before, width of the state

Samples = NDArray[np.float32]


class VoiceActivity:
    def __init__(self) -> None:
        core = ov.Core()
        settings = device_properties("", "CPU") | {
            "INFERENCE_NUM_THREADS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._request = core.compile_model(core.read_model(VAD_MODEL), "CPU", settings).create_infer_request()
        self._lock = threading.Lock()  # a request object serves one thread at a time

    def probabilities(self, audio: Samples) -> Samples:
        """Return a value from 0 to 1 for each frame; the last frame is filled with zeros."""
        return self.continued(audio, b"")[0]

    def continued(self, audio: Samples, state: bytes) -> tuple[Samples, bytes]:
        """Return the same for audio that goes on where `state` was returned, and the state after it."""
        audio = widened(audio)
        count = -(-audio.size // FRAME)
        if not count:
            return np.zeros(0, np.float32), state
        before = np.frombuffer(state, np.float32) if state else np.zeros(2 * STATE + CONTEXT, np.float32)
        h, c = before[: 2 * STATE].reshape(2, 1, 1, STATE)
        frames = np.zeros((count, CONTEXT + FRAME), np.float32)
        body = np.zeros((count, FRAME), np.float32)
        body.reshape(-1)[: audio.size] = audio
        frames[:, CONTEXT:] = body
        frames[0, :CONTEXT] = before[2 * STATE :]
        frames[1:, :CONTEXT] = body[:-1, -CONTEXT:]
        with self._lock:
            outputs = self._request.infer({"input": frames, "h": h, "c": c})
            values = np.array(outputs["speech_probs"], np.float32).reshape(-1)
            parts = (outputs["hn"].reshape(-1), outputs["cn"].reshape(-1), body[-1, -CONTEXT:])
            return values, np.concatenate(parts).astype(np.float32).tobytes()


def widened(audio: Samples) -> Samples:
    """Return telephone speech with a mirror image of it above 4 kHz, and other audio as it is.

    The model takes clean speech that has nothing there for silence."""
    if audio.size < FRAME:
        return audio
    # By Parseval: its energy is twice that of these lines, divided by the length; Hann's window takes 5/8.
    above = np.fft.rfft(audio * np.hanning(audio.size))[NARROW_HZ * audio.size // SAMPLES_PER_SECOND :]
    if 2 * np.sum(np.abs(above) ** 2) > 0.375 * (NOTHING_RMS * audio.size) ** 2:
        return audio
    wide = audio.copy()
    between = wide[1:-1:2]
    between[:] = (audio[0::2][: between.size] + audio[2::2][: between.size]) / 2
    return wide


class VoiceActivityBackend:
    """Voice activity of streams: each call brings the state of its stream and takes it away."""

    def __init__(self, spec: VoiceActivitySpec) -> None:
        self._voice = VoiceActivity()
        self.facts = Facts(engine=f"openvino {ov.__version__.partition('-')[0]}")

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if invocation.method != ACTIVITY:
            raise InvalidArgument(f"method: expected {ACTIVITY}, got {invocation.method}")
        audio = np.frombuffer(invocation.blobs[0], "<i2").astype(np.float32) / np.float32(32768)
        values, state = self._voice.continued(audio, bytes(invocation.blobs[1]))
        yield Result(values.tolist(), (state,), last=True)


MAX_PIECE = 28 * SAMPLES_PER_SECOND  # samples of speech in a piece
BEGINS, ENDS = 0.5, 0.35  # probabilities at which speech begins and ends
MIN_SPEECH_FRAMES = 8  # frames of speech, 0.26 s: less is a click
PAUSE_FRAMES = 10  # frames of silence that end speech, 0.32 s
PAD_SAMPLES = SAMPLES_PER_SECOND // 5  # samples around speech that are read too
KEPT_PAUSE = SAMPLES_PER_SECOND  # a pause up to this length stays as it is
SMOOTHED_FRAMES = 5  # frames whose mean decides where speech is cut
# A piece of this length does not need a part of speech that does not fit whole.
MIN_PIECE = 10 * SAMPLES_PER_SECOND
UNSURE_TAIL = SAMPLES_PER_SECOND // 2  # samples at the end of a window, where speech may just begin


class Range(NamedTuple):
    """Samples from `begin` to `end`."""

    begin: int
    end: int


class Cut(msgspec.Struct, frozen=True):
    """The ranges of a window that are read together, none if there is no speech, and where the next window
    begins."""

    ranges: tuple[Range, ...]
    consumed: int

    def joined(self, audio: Samples) -> Samples:
        return np.concatenate([audio[begin:end] for begin, end in self.ranges])

    def seconds(self, joined: float) -> float:
        """Return the time in the window of a time in the joined speech; both in seconds."""
        starts = [0]
        for begin, end in self.ranges:
            starts.append(starts[-1] + end - begin)
        sample = joined * SAMPLES_PER_SECOND
        at = min(max(bisect_right(starts, sample) - 1, 0), len(self.ranges) - 1)
        begin, end = self.ranges[at]
        return min(begin + sample - starts[at], end) / SAMPLES_PER_SECOND


def cut(probabilities: Samples, samples: int, *, last: bool) -> Cut:
    """Return the first piece of a window of `samples`. `last`: no audio follows it."""
    ranges = _padded(_speech(probabilities), samples)
    if not ranges:
        return Cut((), samples if last else max(samples - UNSURE_TAIL, FRAME))
    complete: list[Range] = []
    room = MAX_PIECE
    for speech in ranges:
        unfinished = not last and speech.end >= samples - FRAME and speech.begin > 0
        if unfinished and room == MAX_PIECE:
            return Cut((), speech.begin)  # alone, and the next window has more of it
        whole = speech.end - speech.begin
        if unfinished and whole <= room:
            return Cut(tuple(complete), speech.begin)
        if whole > room:
            if room <= MAX_PIECE - MIN_PIECE:
                return Cut(tuple(complete), speech.begin)
            end = _quietest(probabilities, speech.begin, speech.begin + room)
            return Cut((*complete, Range(speech.begin, end)), end)
        room -= whole
        complete.append(speech)
    quiet = samples if last else max(samples - UNSURE_TAIL, complete[-1].end)
    return Cut(tuple(complete), quiet)


def _speech(probabilities: Samples) -> list[Range]:
    """Return ranges of frames with speech, at least SHORTEST long, with pauses of at least PAUSE between."""
    ranges: list[Range] = []
    begin: int | None = None
    quiet = 0
    for i, probability in enumerate(probabilities.tolist()):
        if probability >= BEGINS:
            begin, quiet = i if begin is None else begin, 0
        elif begin is not None and probability < ENDS:
            quiet += 1
            if quiet >= PAUSE_FRAMES:
                ranges.append(Range(begin, i + 1 - quiet))
                begin, quiet = None, 0
    if begin is not None:
        ranges.append(Range(begin, len(probabilities) - quiet))
    return [speech for speech in ranges if speech.end - speech.begin >= MIN_SPEECH_FRAMES]


def _padded(frames: list[Range], samples: int) -> list[Range]:
    """Return ranges of samples, with PAD_SAMPLES, joined where the pause between them is short."""
    ranges: list[Range] = []
    for begin, end in frames:
        padded = Range(max(begin * FRAME - PAD_SAMPLES, 0), min(end * FRAME + PAD_SAMPLES, samples))
        near = ranges and padded.begin - ranges[-1].end <= KEPT_PAUSE
        if near and padded.end - ranges[-1].begin <= MAX_PIECE:
            ranges[-1] = Range(ranges[-1].begin, padded.end)
        else:
            ranges.append(Range(max(padded.begin, ranges[-1].end) if ranges else padded.begin, padded.end))
    return ranges


def _quietest(probabilities: Samples, begin: int, end: int) -> int:
    """Return the sample at which to cut speech that has no pause: in the second half of what fits."""
    first, after = (begin + (end - begin) // 2) // FRAME, end // FRAME
    near = np.pad(probabilities[first:after], SMOOTHED_FRAMES // 2, "edge")
    likely = np.convolve(near, np.ones(SMOOTHED_FRAMES) / SMOOTHED_FRAMES, "valid")
    # Of equally quiet frames the last one, so that the piece is long.
    return (first + after - first - 1 - int(np.argmin(likely[::-1]))) * FRAME


STREAMS = "NUM_STREAMS"
MOST_TOKENS = 440  # of a piece, special ones and the prompt included: Whisper's decoder has 448 positions
PROMPT_TOKENS = 200  # of the text before; Whisper reads at most 223
# Compression ratio above which a text is one that repeats itself, as OpenAI's Whisper has it.
MAX_COMPRESSION_RATIO = 2.4
LOOKED_AT = 400  # characters at the end of a text
SECOND_TEMPERATURE = 0.4  # for what went in circles at 0
SHORT_TEXT = 80  # characters that are too few for a ratio
SEED_COUNT = 2**31
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
            if context := "\n".join(filter(None, (arguments.prompt, arguments.hotwords))):
                config.context = context
        if arguments.temperature:
            config.do_sample = True
            config.temperature = arguments.temperature
            config.rng_seed = int.from_bytes(os.urandom(4), "little") % SEED_COUNT
        return config

    def _piece(self, result: Any, arguments: TranscribeArguments, cuts: Cut, speech: Samples) -> Piece:
        seconds = speech.size / SAMPLES_PER_SECOND
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

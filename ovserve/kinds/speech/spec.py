"""Spec, facts and messages of engines that turn speech into text."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import msgspec

from ovserve.engine.protocol.specs import Facts, Spec

SAMPLES_PER_SECOND = 16_000  # audio is one channel of 16-bit samples, little-endian
SAMPLE_BYTES = 2
WINDOW = 60 * SAMPLES_PER_SECOND  # samples of one call at most: below the 2 MiB that travel in a frame
TRANSCRIBE = "transcribe"  # the one method
# The method of voice activity. Its blobs are samples, a multiple of VAD_FRAME, and the state of the call
# before, empty for the first. Its one item has the probabilities, and the next state as its blob.
ACTIVITY = "activity"
VAD_MODEL = Path(__file__).parent / "worker/silero_vad_16k_sequence.onnx"
VAD_FRAME = 512  # samples with one probability: 32 ms


class SpeechFacts(Facts, frozen=True, omit_defaults=True):
    """Facts of a loaded model. `languages` are its codes, in its own spelling; none: it has no list."""

    architecture: str = ""
    languages: tuple[str, ...] = ()
    multilingual: bool = True  # false: English only, without translation
    word_timestamps: bool = False


class SpeechToTextSpec(Spec, frozen=True):
    """A speech recognition model in a directory in OpenVINO IR form."""

    kind: ClassVar[str] = "speech_to_text"
    backend: ClassVar[str] = "ovserve.kinds.speech.worker.transcribe:SpeechBackend"
    facts_type: ClassVar[type[Facts]] = SpeechFacts

    word_timestamps: bool = False


class VoiceActivitySpec(Spec, frozen=True):
    """The probability of speech in audio that goes on from call to call. The model is the package's own."""

    kind: ClassVar[str] = "voice_activity"
    backend: ClassVar[str] = "ovserve.kinds.speech.worker.transcribe:VoiceActivityBackend"
    shared: ClassVar[bool] = True


class TranscribeArguments(msgspec.Struct, frozen=True):
    """The arguments of TRANSCRIBE; the audio is its one blob, at most WINDOW samples."""

    last: bool  # no audio follows
    language: str = ""  # "": detected
    translate: bool = False  # to English
    prompt: str = ""  # the text before this audio
    hotwords: str = ""
    temperature: float = 0.0
    timestamps: bool = False
    words: bool = False
    stream: bool = False  # TextDelta items before the Piece


class TextDelta(msgspec.Struct, frozen=True, tag=True):
    text: str


class Span(msgspec.Struct, frozen=True):
    """A segment or a word. Times are in seconds from the beginning of the audio."""

    start: float
    end: float
    text: str

    def moved(self, seconds: float) -> Span:
        return msgspec.structs.replace(self, start=self.start + seconds, end=self.end + seconds)


class Piece(msgspec.Struct, frozen=True, tag=True):
    """The last item of TRANSCRIBE: the text of the first speech in the audio, up to a pause.

    `consumed` is more than 0; the next call begins there. Without speech the text is empty.
    """

    consumed: int  # samples
    text: str = ""
    language: str = ""
    speech: float = 0.0  # seconds that the model has read
    segments: list[Span] = []
    words: list[Span] = []


TranscribeItem = TextDelta | Piece

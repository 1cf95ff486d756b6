"""Spec, facts and messages of engines that turn speech into text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from ovserve.engine.model.files import json_object
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.llm.audio import SAMPLES_PER_SECOND

MAX_SAMPLES = 60 * SAMPLES_PER_SECOND  # samples of one call at most: below the 2 MiB that travel in a frame
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
    """The arguments of TRANSCRIBE; the audio is its one blob, at most MAX_SAMPLES samples."""

    last: bool = False  # no audio follows
    language: str = ""  # a code of the facts; "": detected
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


# The files of a speech recognition model on disk: read by the server at load, and by the engine.


CONFIG = "config.json"
ENCODER, DECODER = "openvino_encoder_model.xml", "openvino_decoder_model.xml"
TOKENIZER, DETOKENIZER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"
NETWORKS = (ENCODER, DECODER, TOKENIZER, DETOKENIZER)
WHISPER = "WhisperForConditionalGeneration"


class SpeechFiles(msgspec.Struct, frozen=True):
    """The facts of config.json and generation_config.json. Languages are codes such as "en"; none: not
    listed."""

    architecture: str
    multilingual: bool
    languages: tuple[str, ...]
    alignment_heads: bool  # without them the model has no word timestamps

    @property
    def is_whisper(self) -> bool:
        return self.architecture == WHISPER


def read_speech_files(directory: Path) -> SpeechFiles:
    """Raises LoadError naming the file."""
    config, generation = json_object(directory / CONFIG), json_object(directory / "generation_config.json")
    architectures = config.get("architectures")
    languages = generation.get("lang_to_id")
    return SpeechFiles(
        str(architectures[0]) if isinstance(architectures, Sequence) and architectures else "",
        bool(generation.get("is_multilingual", True)),
        tuple(sorted(code.strip("<|>") for code in languages)) if isinstance(languages, dict) else (),
        bool(generation.get("alignment_heads")),
    )


def missing_speech_files(directory: Path) -> list[str]:
    """Return what is wrong with a directory's files, a sentence each."""
    required = [CONFIG, *(file for name in NETWORKS for file in (name, name.replace(".xml", ".bin")))]
    names = [name for name in required if not (directory / name).is_file()]
    return [f"{directory} has no {', '.join(names)}"] if names else []

"""Spec, facts and messages of an engine that speaks text."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import msgspec

from ovserve.engine.protocol.specs import Facts, Spec

SPEAK = "speak"  # the method of its calls

AudioFormat = Literal["wav", "pcm", "flac", "mp3", "opus", "aac"]
FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)
RAW: tuple[AudioFormat, ...] = ("wav", "pcm")  # need no library; the engine sends both as samples


class TextToSpeechFacts(Facts, frozen=True, omit_defaults=True):
    """Facts of a loaded voice model. `voices` are in the order of their names."""

    architecture: str = ""
    sample_rate: int = 0  # Hz; the audio is mono
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()  # that can be asked for; none: the model knows one, and not its name
    formats: tuple[AudioFormat, ...] = RAW
    speeds: bool = True  # the model can speak faster and slower


class NamedVoice(msgspec.Struct, frozen=True):
    """A file of 32-bit floats, under the name that requests use. `path` is absolute."""

    name: str
    path: str


class TextToSpeechSpec(Spec, frozen=True):
    """A voice model in a directory in OpenVINO IR form: Kokoro or SpeechT5."""

    kind: ClassVar[str] = "text_to_speech"
    backend: ClassVar[str] = "ovserve.kinds.voice.worker.backend:TextToSpeechBackend"
    facts_type: ClassVar[type[Facts]] = TextToSpeechFacts

    voices: tuple[NamedVoice, ...] = ()  # besides the files in MODEL/voices, which they override


class SpeakArguments(msgspec.Struct, frozen=True):
    """The arguments of SPEAK. `voice` and `language` are of the facts, or empty for a model without."""

    text: str
    voice: str = ""
    language: str = ""
    speed: float = 1.0
    format: AudioFormat = "pcm"


class Spoken(msgspec.Struct, frozen=True):
    """An item of SPEAK: a sentence, with its encoded audio as the one blob, which an encoder may keep for
    later. The last item has what the encoder kept, and no text."""

    text: str = ""
    audio_seconds: float = 0.0
    seconds: float = 0.0  # of computing
    waited: float = 0.0  # seconds until its turn

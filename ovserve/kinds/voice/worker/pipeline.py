"""Pipeline: OpenVINO GenAI's Text2SpeechPipeline with the voices of a directory.

Source: https://github.com/openvinotoolkit/openvino.genai, read 2026-11-22

The library loads eSpeak NG at run time, which makes the phonemes of words that are in no dictionary, and of
other languages. Without it the library leaves out words that its English dictionary lacks. It reads
`[word](/phonemes/)`, so a word that can be pronounced gets phonemes by rules of English spelling, and any
other one is spelled.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as ov_genai

from ovserve.engine.host.cpu import properties_of
from ovserve.engine.host.memory import resident
from ovserve.engine.model.files import json_object
from ovserve.errors import InvalidArgument, LoadError, sentences_of
from ovserve.kinds.voice.spec import TextToSpeechFacts, TextToSpeechSpec
from ovserve.kinds.voice.worker.normalize import MARKUP, fold, normalize

DIALECTS = {"en-us": "us", "en-gb": "gb"}
SUFFIXES = ("'s", "s", "ing", "ed")  # of dictionary words, which the library can say
LEAST_STEM = 3  # letters
LETTERS = {
    "a": "ˈA", "b": "bˈi", "c": "sˈi", "d": "dˈi", "e": "ˈi", "f": "ˈɛf", "g": "ʤˈi", "h": "ˈAʧ",
    "i": "ˈI", "j": "ʤˈA", "k": "kˈA", "l": "ˈɛl", "m": "ˈɛm", "n": "ˈɛn", "o": "ˈO", "p": "pˈi",
    "q": "kjˈu", "r": "ˈɑɹ", "s": "ˈɛs", "t": "tˈi", "u": "jˈu", "v": "vˈi", "w": "dˈʌbᵊlju",
    "x": "ˈɛks", "y": "wˈI", "z": "zˈi",
}  # fmt: skip
# The longest that fits is taken.
SPELLINGS = {
    "tion": "ʃən", "sion": "ʒən", "tch": "ʧ", "igh": "I", "ough": "O", "augh": "ɔ", "dge": "ʤ",
    "sch": "sk", "ch": "ʧ", "sh": "ʃ", "th": "θ", "ph": "f", "wh": "w", "ck": "k", "ng": "ŋ",
    "qu": "kw", "gh": "ɡ", "kn": "n", "wr": "ɹ", "ee": "i", "ea": "i", "oo": "u", "ou": "W", "ow": "W",
    "ai": "A", "ay": "A", "oi": "Y", "oy": "Y", "au": "ɔ", "aw": "ɔ", "ew": "u", "ie": "i", "ei": "A",
    "oa": "O", "ue": "u", "ui": "u", "eu": "u", "ey": "i", "er": "əɹ", "ir": "ɜɹ", "ur": "ɜɹ",
    "ar": "ɑɹ", "or": "ɔɹ", "ce": "sɛ", "ci": "sɪ", "cy": "si", "ge": "ʤɛ", "a": "æ", "b": "b",
    "c": "k", "d": "d", "e": "ɛ", "f": "f", "g": "ɡ", "h": "h", "i": "ɪ", "j": "ʤ", "k": "k", "l": "l",
    "m": "m", "n": "n", "o": "ɑ", "p": "p", "q": "k", "r": "ɹ", "s": "s", "t": "t", "u": "ʌ", "v": "v",
    "w": "w", "x": "ks", "y": "i", "z": "z",
}  # fmt: skip
AT_END = {
    "oe": "Oi",
    "a": "ə",
    "e": "",
    "i": "i",
    "o": "O",
    "u": "u",
    "y": "i",
    "ce": "s",
    "ge": "ʤ",
    "ed": "d",
    "le": "ᵊl",
}
LONG = {"a": "A", "e": "i", "i": "I", "o": "O", "u": "u", "y": "I"}  # before a consonant and a final e
VOWELS, SOUNDS = frozenset("aeiouy"), frozenset("AIOWYæɑɐɒɔəɛɜɪʊʌiuᵊᵻ")

_COMPOUND = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_INITIALS = re.compile(r"([A-Z]{2,6})('?s)?")
# Consonants that begin an English word; others, as of `gpus`, are spelled.
_BEGINS = re.compile(
    r"[^aeiouy]?[aeiouy]|(?:[bcdfgkpt]r|[bcfgkps]l|s[cfhkmnptqvw]|[cgkprtw]h|[dgkst]w|[kgmp]n|wr|ps|qu|zh|ts|gh)[aeiouyrlh]"
    r"|(?:s[cpt]|th|ch|sh|ph)r|s[cp]l|sch|(.)\1"
)
_CONSONANTS = re.compile(r"[^aeiouy']{4,}")


class Pronunciation:
    """Adds phonemes to the words that one dialect's dictionaries do not have."""

    def __init__(self, directory: Path, language: str) -> None:
        """`directory` holds the dictionaries; without them the library has words of its own."""
        words: set[str] = set()
        for kind in ("gold", "silver"):
            file = directory / f"{DIALECTS[language]}_{kind}.json"
            if file.is_file():
                words.update(json.loads(file.read_text("utf-8")))
        self._words = frozenset(words)

    def complete(self, sentence: str) -> str:
        """Return the sentence with phonemes for the words that would be left out."""
        if not self._words:
            return sentence
        parts = MARKUP.split(sentence)
        return "".join(p if at % 2 else _COMPOUND.sub(self._spoken, p) for at, p in enumerate(parts))

    def _spoken(self, match: re.Match[str]) -> str:
        """The library leaves out what a hyphen joins to a word with phonemes."""
        words = match[0].split("-")
        spoken_words = [word if self._is_known(word) else f"[{word}](/{phonemes(word)}/)" for word in words]
        return match[0] if spoken_words == words else " ".join(spoken_words)

    def _is_known(self, word: str) -> bool:
        if self._is_listed(word):
            return True
        for suffix in SUFFIXES:
            stem = word.removesuffix(suffix)
            if len(stem) < len(word) and len(stem) >= LEAST_STEM and self._is_listed(stem):
                return not stem.endswith("s") or suffix != "s"
        return False

    def _is_listed(self, word: str) -> bool:
        return word in self._words or word.lower() in self._words


def phonemes(word: str) -> str:
    """Return the sounds of a word by its spelling, or the names of its letters if it cannot be pronounced."""
    if (initials := _INITIALS.fullmatch(word)) is not None:
        return " ".join(LETTERS[c] for c in initials[1].lower()) + ("z" if initials[2] else "")
    if word[:2] in ("O'", "o'") and len(word) > 3:
        return f"O {phonemes(word[2:])}"
    letters = word.lower().replace("'", "")
    pronounced = VOWELS & set(letters) and _BEGINS.match(letters) and not _CONSONANTS.search(letters)
    if len(letters) == 1 or not pronounced:
        return " ".join(LETTERS[c] for c in letters)
    sounds, at = "", 0
    while at < len(letters):
        sound, size = _sound(letters, at)
        sounds, at = sounds + sound, at + size
    first = next((i for i, sound in enumerate(sounds) if sound in SOUNDS), 0)
    return f"{sounds[:first]}ˈ{sounds[first:]}"


def _sound(word: str, at: int) -> tuple[str, int]:
    """Return the sound at a place, and of how many letters it is."""
    rest = word[at:]
    if at and rest in AT_END and not (rest == "e" and word[at - 1] in VOWELS):
        return AT_END[rest], len(rest)
    if len(rest) > 1 and rest[0] == rest[1] and rest[0] not in VOWELS:  # a double consonant is one
        return SPELLINGS[rest[0]], 2
    if len(rest) == 3 and rest[0] in LONG and rest[2] == "e" and rest[1] not in VOWELS | set("rx"):
        return LONG[rest[0]], 1
    if rest[0] == "y" and not at:
        return "j", 1
    size = next(n for n in (4, 3, 2, 1) if rest[:n] in SPELLINGS and len(rest) >= n)
    return SPELLINGS[rest[:size]], size


LIBRARY, DATA = "MISAKI_ESPEAK_LIBRARY", "ESPEAK_DATA_PATH"


def find_espeak() -> Mapping[str, str] | None:
    """Return the environment with which the library finds it: the user's, the system's or the extra's.

    None if there is none.
    """
    if os.environ.get(LIBRARY) or ctypes.util.find_library("espeak-ng"):
        return {}
    try:
        import espeakng_loader
    except ImportError:
        return None
    return {LIBRARY: str(espeakng_loader.get_library_path()), DATA: str(espeakng_loader.get_data_path())}


KOKORO_RATE, SPEECHT5_RATE = 24_000, 16_000
ENGLISH = ("en-us", "en-gb")
BY_ESPEAK = ("es", "fr-fr", "hi", "it", "pt-br")  # Kokoro's other languages, whose phonemes it makes
# Bytes since the load. The longest sentences take 0.7 GB, and one of a new length leaves up to 2 MB for good,
# even with the bound of `device_properties` (60 sentences on an EPYC without AVX-512, 2026-11-27).
MAX_GROWTH = 1_250_000_000
WARM_UP = "Ready."  # the first inference compiles kernels: 1.5 s, which no client shall wait for

THROWN = "Exception from"  # in messages of the runtime, and not of the part that makes phonemes


class Pipeline:
    """One at a time: the library's object is not re-entrant."""

    def __init__(self, spec: TextToSpeechSpec) -> None:
        directory = Path(spec.model_path)
        self._kokoro = is_kokoro(directory)
        espeak = find_espeak() if self._kokoro else None
        rules = self._kokoro and espeak is None
        self._pronunciations = {
            language: Pronunciation(directory / "data", language) for language in (ENGLISH if rules else ())
        }
        if espeak is not None:
            os.environ.update(espeak)
        self._directory, self._spec = directory, spec
        self._load()
        self._shape = [int(n) for n in self._pipeline.get_speaker_embedding_shape()]
        self._voices = self._read_voices(directory, spec)
        if self._kokoro and not self._voices:
            raise LoadError("Kokoro needs voices/NAME.bin, and there is none", file=spec.model_path)
        languages: tuple[str, ...] = ()
        if self._kokoro:
            languages = ENGLISH if espeak is None else (*ENGLISH, *BY_ESPEAK)
        self.facts = TextToSpeechFacts(
            engine=f"openvino-genai {ov_genai.__version__}",
            architecture="Kokoro" if self._kokoro else "SpeechT5",
            sample_rate=KOKORO_RATE if self._kokoro else SPEECHT5_RATE,
            voices=tuple(sorted(self._voices)),
            languages=languages,
            speeds=self._kokoro,
        )
        self.speak(WARM_UP, next(iter(self.facts.voices), ""), "en-us", 1.0)
        self._memory = resident(os.getpid())

    def _load(self) -> None:
        """Raises LoadError; what was loaded before stays then."""
        spec = self._spec
        try:
            self._pipeline = ov_genai.Text2SpeechPipeline(
                self._directory, spec.device, **properties_of(spec.properties, spec.device)
            )
        except RuntimeError as error:
            raise LoadError(sentences_of(error)[0], file=spec.model_path) from error

    @property
    def has_grown(self) -> bool:
        return resident(os.getpid()) - self._memory > MAX_GROWTH

    def reload(self) -> None:
        """Load the model again, which frees what the runtime keeps of each length. Raises LoadError."""
        try:
            self._load()
        finally:
            self._memory = resident(os.getpid())

    def in_words(self, text: str, language: str) -> str:
        """Return the text as it is spoken: in English without digits and signs."""
        return normalize(text) if language in ("", *ENGLISH) else fold(text)

    def speak(self, text: str, voice: str, language: str, speed: float) -> np.ndarray[Any, Any]:
        """Return float32 samples, none if nothing in the text can be spoken.

        Raises InvalidArgument for a voice or a language that the model does not have.
        """
        if voice and voice not in self._voices:
            raise InvalidArgument.at("voice", f"{voice!r} is not one of the model's")
        options: dict[str, Any] = {"language": language, "speed": speed} if self._kokoro else {}
        embedding = self._voices[voice] if voice else None
        if (pronunciation := self._pronunciations.get(language)) is not None:
            text = pronunciation.complete(text)
        try:
            result = self._pipeline.generate(text, embedding, **options)
        except RuntimeError as error:
            if THROWN in str(error):
                raise
            sys.stderr.write(f"{text[:80]!r} cannot be spoken: {error}\n")  # by the part that makes phonemes
            return np.zeros(0, np.float32)
        arrays = [np.array(speech.data, np.float32).reshape(-1) for speech in result.speeches]
        return arrays[0] if arrays else np.zeros(0, np.float32)

    def _read_voices(self, directory: Path, spec: TextToSpeechSpec) -> dict[str, openvino.Tensor]:
        """Raises LoadError for a file of another size than the model's voices have."""
        files = {path.stem: path for path in sorted((directory / "voices").glob("*.bin"))}
        files |= {voice.name: Path(voice.path) for voice in spec.voices}
        return {name: self._read_voice(name, path) for name, path in files.items()}

    def _read_voice(self, name: str, path: Path) -> openvino.Tensor:
        expected = 4 * int(np.prod(self._shape))
        try:
            size = path.stat().st_size
            if size == expected:
                return openvino.Tensor(np.fromfile(path, "<f4").reshape(self._shape))
        except OSError as error:
            raise LoadError(f"{path}: {error.strerror}", field="voices") from error
        shape = " x ".join(map(str, self._shape))
        raise LoadError(
            f"voice {name!r}: {path} has {size} bytes; {expected} were expected, {shape} floats",
            field="voices",
        )


def is_kokoro(directory: Path) -> bool:
    """Raises LoadError for a config.json that cannot be read."""
    config = json_object(directory / "config.json", needed=True)
    return "vocab" in config and "speecht5" not in str(config.get("model_type", ""))

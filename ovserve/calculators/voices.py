"""Voices: which voice and language a request means, of those that a model has.

Names of Kokoro's voices say their language by the first letter and the speaker after `_`: `bf_emma`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ovserve.engine.protocol.text_to_speech import TextToSpeechFacts
from ovserve.errors import InvalidArgument

LANGUAGES: Mapping[str, str] = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "j": "ja",
    "p": "pt-br",
    "z": "zh",
}
SPELLINGS = {**LANGUAGES, "en": "en-us", "fr": "fr-fr", "pt": "pt-br"}
SHOWN = 12  # names in an error message
MAX_SHOWN = 64


@dataclass(frozen=True)
class Voices:
    facts: TextToSpeechFacts
    default: str  # "": the first one in English, else the first

    def find(self, wanted: str | None) -> str:
        """Return the name of the voice, "" for a model without voices. Raises InvalidArgument."""
        names = self.facts.voices
        if wanted is None:
            return self.default_name
        if wanted in names:
            return wanted
        folded = wanted.casefold()
        same = [n for n in names if n.casefold() == folded]
        found = same or [n for n in names if n.casefold().partition("_")[2] == folded]
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidArgument(
                f"voice: {_shown(wanted)} may be {' or '.join(found)}; write one of them", param="voice"
            )
        raise InvalidArgument(
            f"voice: Requested voice {_shown(wanted)} not found in available voices: {_listed(names)}",
            param="voice",
        )

    @property
    def default_name(self) -> str:
        names = self.facts.voices
        if self.default or not names:
            return self.default
        return "af_heart" if "af_heart" in names else names[0]

    def language_of(self, voice: str) -> str | None:
        """Return the language of a voice; None if its name does not say."""
        if not self.facts.languages:
            return None
        return LANGUAGES.get(voice[:1]) if voice[2:3] == "_" else "en-us"

    def language(self, wanted: str | None, voice: str) -> str:
        """Return the language, "" for a model with one only. Raises InvalidArgument."""
        known = self.facts.languages
        if wanted is None:
            found, field = self.language_of(voice) or "", f"voice: {voice} is"
        else:
            folded = wanted.strip().casefold().replace("_", "-")
            found = SPELLINGS.get(folded, folded)
            if found not in known:
                found = SPELLINGS.get(folded.partition("-")[0], folded.partition("-")[0])
            field = f"language: {_shown(wanted)} is"
        if not known or found in known:
            return found if known else ""
        param = "voice" if wanted is None else "language"
        why = f"{field} not a language that the model speaks here; it has {', '.join(known)}"
        if found in LANGUAGES.values() and found not in ("ja", "zh"):
            why += ". The others need eSpeak NG on the server"
        raise InvalidArgument(why, param=param)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "the model has none"
    more = f" and {len(names) - SHOWN} more, see GET /v3/audio/voices" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")

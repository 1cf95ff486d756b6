"""Phonemes of English words that the library's dictionaries lack, where there is no eSpeak NG to make them.

The library leaves such words out. It reads `[word](/phonemes/)`, so a word that can be pronounced gets
phonemes by rules of English spelling, and any other one is spelled.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ovserve.kinds.voice.worker.normalize import MARKUP

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

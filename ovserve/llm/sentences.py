"""Text cut into sentences for a voice model, which speaks one at a time.

The first sentence is kept short, because a listener waits for it. All work is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

# Characters spoken at once: about 20 s of audio, after which others get their turn.
MAX_SENTENCE_CHARACTERS = 300
FIRST_SENTENCE_CHARACTERS = 80  # characters of a first sentence that is not cut at a comma
FIRST_CLAUSE_CHARACTERS = 30  # characters before the comma at which a first sentence is cut
# Of an answer that grows: characters before its first comma that is worth a cut, the words after which it is
# cut without one, and those that have to follow. A word is two characters in scripts without blanks.
FIRST_CLAUSE, OPEN, FOLLOWING = 12, 6, 3
SHORT_SENTENCE_CHARACTERS = 12  # a sentence below this is spoken together with the next: "No. 5", "Oh!"
MAX_NUMBER_DIGITS = 13  # a number this long is read digit by digit; the library drops longer ones silently

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffc-\uffff]")
_PARAGRAPH = re.compile(r"\n[ \t]*(?=\n|[-*+\u2022#>] |\d{1,3}[.)] )")
_SPACE = re.compile(r"\s+")
_NUMBER = re.compile(rf"\d{{{MAX_NUMBER_DIGITS},}}")
# Ends with closing quotes and a space, or with a full stop of scripts that use no spaces.
# Possessive, and not begun inside a run: 100,000 dots are searched once, not once from each dot.
_END = re.compile(
    "(?<![.!?\u2026])[.!?\u2026]++[\"')\\]\u201d\u2019\u00bb]*+(?=\\s)|[\u3002\uff01\uff1f\u0964]++[\u300d\u300f\u201d]*+"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|etc|e\.g|i\.e|No|Nr|approx|Inc|Ltd|Co|Fig|Vol)\.$"
)
_WORD = re.compile("[\u2e80-\u9fff\uf900-\ufaff]{2}|[^\\s\u2e80-\u9fff\uf900-\ufaff]+\\s+")
_CLAUSE_END = re.compile("[,;:\u2014\u2013\u3001\uff0c](?=\\s|$)|[\u3001\uff0c]")


def sentences(text: str) -> list[str]:
    """Return the sentences in which there is something to speak, none too long."""
    parts: list[str] = []
    for sentence in _merged(_cut(text)):
        for part in _parts(sentence, first=not parts):
            if speakable(part):
                parts.append(part)
    return parts


def speakable(text: str) -> bool:
    """Return whether there is a letter or a digit."""
    return any(map(str.isalnum, text))


def complete(text: str) -> tuple[str, str]:
    """Split text that is still growing into what is complete, which may be empty, and the rest."""
    at = 0
    for match in _END.finditer(text):
        if not _is_abbreviation(text, match):
            at = match.end()
    if (newline := text.rfind("\n\n")) >= at:
        at = newline + 2
    return text[:at], text[at:]


def first_clause(text: str) -> tuple[str, str]:
    """Split the beginning of an answer, still growing, after its first clause that is worth speaking.

    If none has ended in the first words of more, these are the first part.
    """
    cut = _CLAUSE_END.search(text, FIRST_CLAUSE)
    if cut is not None and cut.end() < len(text):
        return text[: cut.end()], text[cut.end() :]
    ends = [word.end() for word in islice(_WORD.finditer(text), OPEN + FOLLOWING)]
    at = ends[OPEN - 1] if cut is None and len(ends) == OPEN + FOLLOWING else 0
    return text[:at], text[at:]


def _cut(text: str) -> Iterator[str]:
    for paragraph in _PARAGRAPH.split(_CONTROL.sub(" ", text)):
        line = _NUMBER.sub(lambda number: " ".join(number[0]), _SPACE.sub(" ", paragraph)).strip()
        start = 0
        for match in _END.finditer(line):
            if not _is_abbreviation(line, match):
                yield line[start : match.end()].strip()
                start = match.end()
        yield line[start:].strip()


def _is_abbreviation(text: str, end: re.Match[str]) -> bool:
    if end[0] != ".":
        return False
    return bool(_ABBREVIATION.search(text[max(0, end.start() - 8) : end.end()])) or (
        text[end.end() : end.end() + 2].strip()[:1].islower()
    )


def _merged(parts: Iterator[str]) -> Iterator[str]:
    """Join short sentences with the next one."""
    held = ""
    for sentence in parts:
        held = f"{held} {sentence}".strip()
        if len(held) >= SHORT_SENTENCE_CHARACTERS:
            yield held
            held = ""
    if held:
        yield held


def _parts(sentence: str, *, first: bool) -> Iterator[str]:
    cut = (
        _CLAUSE_END.search(sentence, FIRST_CLAUSE_CHARACTERS)
        if first and len(sentence) > FIRST_SENTENCE_CHARACTERS
        else None
    )
    if cut is not None and cut.end() <= MAX_SENTENCE_CHARACTERS:
        yield sentence[: cut.end()]
        sentence = sentence[cut.end() :].strip()
    at = 0
    while len(sentence) - at > MAX_SENTENCE_CHARACTERS:
        window = sentence[at : at + MAX_SENTENCE_CHARACTERS]
        clauses = [
            match.end()
            for match in _CLAUSE_END.finditer(window)
            if match.end() > MAX_SENTENCE_CHARACTERS // 3
        ]
        size = clauses[-1] if clauses else window.rfind(" ")
        if size < MAX_SENTENCE_CHARACTERS // 3:
            size = MAX_SENTENCE_CHARACTERS
        yield sentence[at : at + size].strip()
        at += size
    yield sentence[at:].strip()

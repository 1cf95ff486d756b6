"""Text in EBNF means to the real compiler what was meant, whatever follows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.llm.grammar.text import LAST_CHARACTER, Ranges, character_class, complement, in_string, quoted
from tests.bytewise import Language, instances, language

ASCII = [chr(code) for code in range(0x80)]
SPECIAL = [char for char in ASCII if not char.isalnum()]
FOLLOWERS = ["0", "9", "a", "f", "A", "F", "-", "]", "\\"]
RAW = [char for char in SPECIAL if char != "\x7f"]  # the grammar writes DEL as an escape
WIDE = ["\x85", "\xe9", "\u2028", "\ufeff", "\U0001f600", "\U0010ffff"]
# What a wrong reading gives: a longer code, or the digits by themselves.
OTHERS = [*ASCII, *WIDE, *(chr(0x20 * 16 + digit) for digit in range(16)), "\u02da", "\u02df"]


def members(found: Language) -> set[str]:
    return {char for char in OTHERS if char in found}


def ranges(*chars: str) -> Ranges:
    return [(ord(char), ord(char)) for char in chars]


def test_a_class_has_its_members_whatever_follows(subtests: pytest.Subtests) -> None:
    for char in [*SPECIAL, *WIDE]:
        with subtests.test(repr(char)):
            for follower in FOLLOWERS:
                expected = {char, follower}
                assert members(language(character_class(ranges(char, follower)))) == expected
                assert members(language(character_class(ranges(follower, char)))) == expected


def test_a_range_begins_and_ends_at_its_bounds(subtests: pytest.Subtests) -> None:
    for char in [*SPECIAL, *WIDE]:
        with subtests.test(repr(char)):
            code = ord(char)
            for low, high in ((code, min(code + 9, LAST_CHARACTER)), (max(code - 9, 0), code)):
                expected = {other for other in OTHERS if low <= ord(other) <= high}
                assert members(language(character_class([(low, high), *ranges("a")]))) == expected | {"a"}
            rest = character_class(complement(ranges(char, "a")))
            assert members(language(rest)) == set(OTHERS) - {char, "a"}


def test_a_literal_is_its_text(subtests: pytest.Subtests) -> None:
    for char in [*SPECIAL, *WIDE]:
        with subtests.test(repr(char)):
            for follower in FOLLOWERS:
                text = f"{follower}{char}{follower}{follower}"
                found = language(quoted(text))
                assert text in found
                assert not any(text.replace(char, other) in found for other in OTHERS if other != char)


def test_a_character_of_a_json_string_is_written_as_it_is_read(subtests: pytest.Subtests) -> None:
    for char in [*RAW, *WIDE]:
        with subtests.test(repr(char)):
            inside = in_string(ranges(char, "a"))
            assert inside
            found = language(f'"\\"" {inside} "\\""')
            read = {other for other in OTHERS if json.dumps(other, ensure_ascii=False) in found}
            assert read == {char, "a"}


def test_keys_and_values_of_a_schema(subtests: pytest.Subtests) -> None:
    for char in RAW:
        with subtests.test(repr(char)):
            for follower in "af09":
                name = f"{char}{follower}{follower}"
                found = instances(
                    {"properties": {name: {"enum": [name, char]}}, "additionalProperties": {"type": "null"}}
                )
                for value in (name, char):
                    assert json.dumps({name: value}, ensure_ascii=False) in found
                assert json.dumps({name: None}, ensure_ascii=False) not in found, "the name is no other key"
                assert json.dumps({char + follower: None}, ensure_ascii=False) in found


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"pattern": "^[.a]$"}, [".", "a"], ["\u02ea", "\u02da", "-"]),
        ({"pattern": r"^\w{2}$"}, ["a_", "0Z"], ["a-", "\u05f0"]),
        ({"pattern": "^[a-zA-Z0-9._%+-]{1,9}$"}, ["a.b_c%d+-"], ["a@b"]),
        ({"pattern": "^[^-a]$"}, ["b", ".", "\u02da"], ["-", "a"]),
        ({"pattern": r"^[A-Za-z0-9+/]{4}={0,2}$"}, ["aB+/", "aB+/=="], ["aB-_"]),
        (
            {"properties": {"is_enabled": {"type": "boolean"}}, "additionalProperties": True},
            [{"is_enabled": True}, {"is-enabled": "text"}],
            [{"is_enabled": "not a boolean"}],
        ),
    ],
)
def test_schemas_of_reports(schema: dict[str, Any], right: list[Any], wrong: list[Any]) -> None:
    found = instances(schema if "properties" in schema else {"type": "string", **schema})
    assert [value for value in right if json.dumps(value, ensure_ascii=False) not in found] == []
    assert [value for value in wrong if json.dumps(value, ensure_ascii=False) in found] == []

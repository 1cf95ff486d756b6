"""Text that is lost, doubled, torn inside a character or withheld for ever, with toy tokenizers of each kind."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.llm.token_bytes import CONTEXT_TOKENS, MAX_HELD, TokenWindow

Decode = Callable[[Sequence[int]], str]


def byte_replace(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def byte_ignore(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="ignore")


WORDS = ["▁Hello", "▁wor", "ld", ",", "▁", "▁日本", "é"]


def sentencepiece(ids: Sequence[int]) -> str:
    """Byte fallback below 256, words above; the blank before the first word is dropped."""
    data = b"".join(bytes([id_]) if id_ < 256 else WORDS[id_ - 256].replace("▁", " ").encode() for id_ in ids)
    text = data.decode("utf-8", errors="replace")
    return text.removeprefix(" ") if ids and ids[0] >= 256 else text


def stream(decode: Decode, ids: Sequence[int], sizes: Sequence[int] = (1,)) -> list[str]:
    window, deltas, at, turn = TokenWindow(), [], 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        window.push(ids[at : at + size])
        at, turn = at + size, turn + 1
        deltas.append(window.take(*map(decode, window.rows())))
    return [*deltas, window.flush()]


@pytest.mark.parametrize("decode", [byte_replace, byte_ignore])
@given(text=st.text(), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_bytes_of_valid_text(decode: Decode, text: str, sizes: list[int]) -> None:
    deltas = stream(decode, text.encode(), sizes)
    assert "".join(deltas) == text


@given(ids=st.lists(st.integers(256, 255 + len(WORDS))), sizes=st.lists(st.integers(1, 3), min_size=1))
def test_blanks_between_words(ids: list[int], sizes: list[int]) -> None:
    assert "".join(stream(sentencepiece, ids, sizes)) == sentencepiece(ids)


def test_byte_fallback_between_words() -> None:
    ids = [256, *"🎉".encode(), 257, 258, *"日".encode(), 261]
    deltas = stream(sentencepiece, ids)
    assert "".join(deltas) == "Hello🎉 world日 日本"
    assert not any("\ufffd" in delta for delta in deltas)


def test_each_character_comes_with_its_last_byte() -> None:
    for decode in (byte_replace, byte_ignore):
        assert stream(decode, "aé🎉b".encode()) == ["a", "", "é", "", "", "", "🎉", "b", ""]


@pytest.mark.parametrize("decode", [byte_replace, byte_ignore])
def test_invalid_bytes_are_not_withheld_for_ever(decode: Decode) -> None:
    window, out = TokenWindow(), ""
    for count in range(1, 101):
        window.push([0xFF])
        out += window.take(*map(decode, window.rows()))
        assert len(decode([0xFF] * count)) - len(out) <= MAX_HELD
        assert len(window.rows()[0]) <= CONTEXT_TOKENS
    window.push(b"ok")
    out += window.take(*map(decode, window.rows()))
    assert out == decode(b"\xff" * 100 + b"ok")


@given(data=st.binary(), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_bytes_of_any_kind(data: bytes, sizes: list[int]) -> None:
    assert "".join(stream(byte_replace, data, sizes)) == byte_replace(data)


def test_an_unfinished_character_at_the_end_is_not_lost_silently() -> None:
    assert "".join(stream(byte_replace, b"a\xf0\x9f")) == "a\ufffd"

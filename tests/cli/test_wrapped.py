"""Answers on a terminal: no word is broken, and nothing is lost."""

from __future__ import annotations

import io

import pyte
import pytest

from ovserve.cli.chat.terminal import Wrapped


class Terminal(io.StringIO):
    """A terminal of 11 columns, of which 10 are used."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = pyte.Screen(11, 12)
        self.screen.set_mode(pyte.modes.LNM)

    def write(self, text: str) -> int:
        pyte.Stream(self.screen).feed(text)
        return len(text)

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four", ["one two", "three four"]),
        ("0123456789 x", ["0123456789", "x"]),
        ("a 0123456789", ["a", "0123456789"]),
        ("aaaaaaaaaaaaaaaaaaaaaaaaa b", ["aaaaaaaaaa", "aaaaaaaaaa", "aaaaa b"]),
        ("    def f(x):\n        return", ["    def", "f(x):", "return"]),
        ("one\n\ntwo", ["one", "two"]),
        ("日本語日本語日本語", ["日本語日本", "語日本語"]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_no_word_is_broken(monkeypatch: pytest.MonkeyPatch, text: str, lines: list[str], size: int) -> None:
    monkeypatch.setattr(Wrapped, "_width", lambda self: 10)
    terminal = Terminal()
    wrapped = Wrapped(terminal)
    for i in range(0, len(text), size):
        wrapped.write(text[i : i + size])
    assert [line.replace(" ", "") for line in terminal.lines()] == [line.replace(" ", "") for line in lines]


def test_the_width_of_what_is_no_terminal() -> None:
    assert Wrapped(io.StringIO())._width() == 79

"""Text as it comes, without a word broken at the edge of the terminal."""

from __future__ import annotations

import os
from typing import TextIO

from prompt_toolkit.utils import get_cwidth

DEFAULT_COLUMNS = 80  # of a terminal that does not say


class Wrapped:
    """Writes to a terminal. A word that does not fit is taken back and begins the next line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._column = 0
        self._word = ""  # what is written of the last word, if it may move to the next line

    def write(self, text: str) -> None:
        width = self._width()
        self._out.write("".join(self._wrapped(char, width) for char in text))
        self._out.flush()

    def _wrapped(self, char: str, width: int) -> str:
        """Return what puts a character on the terminal."""
        if char == "\n":
            self._column, self._word = 0, ""
            return char
        cells, before = get_cwidth(char), ""
        if char.isspace():
            self._word = ""
            if self._column >= width:
                return ""  # the next word begins a line
        elif self._column + cells > width:
            before = self._next_line()
        if not char.isspace():
            self._word = "" if cells > 1 else self._word + char  # Chinese breaks anywhere
        self._column += cells
        return before + char

    def _next_line(self) -> str:
        word, moved = self._word, get_cwidth(self._word)
        if moved >= self._column:  # longer than a line
            word, moved = "", 0
        self._word, self._column = word, moved
        back = f"\x1b[{moved}D\x1b[K" if moved else ""
        return f"{back}\n{word}"

    def _width(self) -> int:
        """Return the columns that are used: in the last one, terminals differ in where the cursor is."""
        try:
            columns = os.get_terminal_size(self._out.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return max((columns or DEFAULT_COLUMNS) - 1, 2)

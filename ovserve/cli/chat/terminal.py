"""The chat on a terminal: a line editor with history, and answers as they come.

A model's text is shown without control characters: an escape sequence in it could rewrite the screen, or the
clipboard.
"""

from __future__ import annotations

import os
import re
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.utils import get_cwidth

from ovserve.cli.chat.conversation import Chunk, Commands, Conversation, Ended, stats_lines
from ovserve.cli.parser import colours
from ovserve.errors import OvserveError
from ovserve.pull.packaged import better_than

# Text as it comes, without a word broken at the edge of the terminal.


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


LOCAL_FLAGS = 3  # the place of lflag in what tcgetattr() returns
HISTORY = Path("~/.local/state/ovserve/history")
BLOCK = '"""'
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def visible(text: str) -> str:
    """Return text without control characters, except tabs and line ends."""
    return CONTROL.sub("", text)


class Chat:
    def __init__(self, conversation: Conversation, *, verbose: bool = False) -> None:
        self._chat, self._verbose = conversation, verbose
        self._commands = Commands(conversation, _say, self._show, _confirm)

    def run(self) -> None:
        """Read lines until Ctrl-D or /bye."""
        context = f", context {self._chat.context}" if self._chat.context else ""
        _say(f"{self._chat.model}{context}; /help lists the commands, Ctrl-D ends")
        if (address := self._chat.connection.address).startswith("http"):
            _say(f"the console is at {address}/console")
        if better := better_than(self._chat.model):
            _say(better)
        session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=WordCompleter(self._commands.names, sentence=True),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="... ",
        )
        hint = HTML("<ansibrightblack>Ask something, or /help</ansibrightblack>")
        while True:
            try:
                line = session.prompt(">>> ", placeholder=hint if colours(sys.stdout) else None)
            except KeyboardInterrupt:
                _say("Ctrl-D or /bye ends")
                continue
            except EOFError:
                return
            try:
                self._do(_unwrapped(line))
            except Ended:
                return

    def _do(self, line: str) -> None:
        if not line.strip():
            return
        try:
            if line.startswith("/") and not line.startswith("//"):
                self._commands.run(line)
            else:
                self._show(self._chat.ask(line.removeprefix("/") if line.startswith("//") else line))
        except OvserveError as error:
            sys.stderr.write(f"{visible(str(error))}\n")
            if getattr(error, "code_of_server", "") == "context_length_exceeded":
                sys.stderr.write("/clear forgets the conversation, /undo its last question\n")

    def _show(self, answer: Iterator[Chunk]) -> None:
        stopped = not show(answer, sys.stdout)
        if stopped:
            _say("(stopped)")
        stats = self._chat.last
        if stats is not None and stats.cut:
            _say(f"({stats.cut})")
        if stats is not None and self._verbose and not stopped:
            for line in stats_lines(stats, self._chat.context):
                _say(line)


@contextmanager
def without_echo() -> Iterator[None]:
    """Keep keys that are pressed meanwhile out of what is written; Ctrl-C still interrupts."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    changed = termios.tcgetattr(sys.stdin)
    changed[LOCAL_FLAGS] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def show(answer: Iterator[Chunk], out: TextIO) -> bool:
    """Write an answer to a terminal; False if Ctrl-C has stopped it."""
    dim = colours(out)
    reasoning = False
    wrapped = Wrapped(out)
    try:
        with without_echo():
            for chunk in answer:
                if chunk.reasoning != reasoning:
                    if dim:
                        out.write(DIM if chunk.reasoning else PLAIN)
                    wrapped.write("" if dim and chunk.reasoning else "\n\n" if dim else "\n")
                    reasoning = chunk.reasoning
                wrapped.write(visible(chunk.text))
    except KeyboardInterrupt:
        return False
    finally:
        out.write((PLAIN if dim and reasoning else "") + "\n")
        out.flush()
    return True


def _confirm(question: str) -> bool:
    """Return whether the user agrees; Enter alone, Ctrl-C and Ctrl-D mean no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


def _say(line: str) -> None:
    dim = colours(sys.stdout)
    sys.stdout.write(f"{DIM}{line}{PLAIN}\n" if dim else f"{line}\n")


def _history() -> History:
    """Return what was asked before, in a file that only this user can read."""
    path = Path(os.path.expanduser(HISTORY))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _open(text: str) -> bool:
    """Return whether a line goes on: a block is open, or it ends with a backslash."""
    stripped = text.lstrip()
    if stripped.startswith(BLOCK):
        return stripped.count(BLOCK) < 2
    return text.endswith("\\")


def _unwrapped(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(BLOCK) and stripped.endswith(BLOCK) and len(stripped) >= 2 * len(BLOCK):
        return stripped[len(BLOCK) : -len(BLOCK)].strip("\n")
    return text.replace("\\\n", "\n")

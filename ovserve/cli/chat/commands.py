"""The commands of the chat, which begin with a slash. Each is a method whose docstring is its help."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ovserve.cli.chat.conversation import Chunk, Conversation, Stats
from ovserve.errors import InvalidArgument

OPTIONS: dict[str, type[int] | type[float] | type[str]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "repetition_penalty": float,
    "reasoning_effort": str,
}
HELP_FOOT = """\
Enter sends; Alt-Enter or a line between \"\"\" makes several lines. Ctrl-C stops an answer, Ctrl-D ends."""


class Ended(Exception):
    """The user has said goodbye."""


class Commands:
    """`say` prints a line; `answer` shows an answer as it comes; `confirm` asks a question."""

    def __init__(
        self,
        conversation: Conversation,
        say: Callable[[str], None],
        answer: Callable[[Iterator[Chunk]], None],
        confirm: Callable[[str], bool],
    ) -> None:
        self._chat, self._say, self._answer, self._confirm = conversation, say, answer, confirm
        self._saved: Path | None = None

    @property
    def names(self) -> list[str]:
        return [f"/{name.removeprefix('do_')}" for name in dir(self) if name.startswith("do_")]

    def run(self, line: str) -> None:
        """Run `/NAME TEXT`. Raises InvalidArgument, Ended, and what files and the server raise."""
        name, _, text = line[1:].partition(" ")
        name = {"exit": "bye", "quit": "bye", "q": "bye", "?": "help"}.get(name, name)
        command: Callable[[str], None] | None = getattr(self, f"do_{name}", None)
        if command is None:
            near = difflib.get_close_matches(f"/{name}", self.names, n=1)
            hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
            raise InvalidArgument(f"/{name}: unknown; {hint}")
        command(text.strip())

    def do_help(self, text: str) -> None:
        """/help: list the commands"""
        for name in self.names:
            doc = getattr(self, f"do_{name[1:]}").__doc__
            usage, _, what = doc.partition(": ")
            self._say(f"  {usage.ljust(22)}{what}")
        self._say(HELP_FOOT)

    def do_system(self, text: str) -> None:
        """/system [TEXT]: set the system prompt, or show it; /system - removes it"""
        if text:
            self._chat.system = "" if text == "-" else text
        self._say(f"system: {self._chat.system or '(none)'}")

    def do_save(self, text: str) -> None:
        """/save FILE: write the conversation, as JSON, or as Markdown to a .md file"""
        path = Path(_needed(text, "/save FILE")).expanduser()
        if path.exists() and path != self._saved and not self._confirm(f"{path} exists; overwrite it?"):
            self._say("not saved")
            return
        self._chat.save(path)
        self._saved = path
        self._say(f"saved to {path}")

    def do_load(self, text: str) -> None:
        """/load FILE: go on with a conversation that /save wrote"""
        path = Path(_needed(text, "/load FILE")).expanduser()
        self._chat.load(path)
        self._saved = path
        self._say(f"loaded {len(self._chat.messages)} messages from {path}")

    def do_clear(self, text: str) -> None:
        """/clear: forget the conversation; the system prompt stays"""
        self._chat.clear()
        self._say("cleared")

    def do_retry(self, text: str) -> None:
        """/retry: answer the last question again"""
        question = self._chat.undo()
        if question is None:
            raise InvalidArgument("/retry: nothing was asked yet")
        self._answer(self._chat.ask(question))

    def do_undo(self, text: str) -> None:
        """/undo: take back the last question and its answer"""
        question = self._chat.undo()
        self._say("nothing to take back" if question is None else f"taken back: {question[:60]}")

    def do_image(self, text: str) -> None:
        """/image FILE: attach an image to the next message"""
        self._chat.attach(Path(_needed(text, "/image FILE")))
        self._say(f"{len(self._chat.images)} attached")

    def do_set(self, text: str) -> None:
        """/set [NAME VALUE]: set a parameter, such as temperature 0.2, or show them; - removes one"""
        name, _, value = text.partition(" ")
        if name and name not in OPTIONS:
            raise InvalidArgument(f"/set: {name!r} is not one of {', '.join(OPTIONS)}")
        if name:
            set_option(self._chat.options, name, value.strip())
        options = {k: v for k, v in self._chat.options.items() if k in OPTIONS}
        self._say(", ".join(f"{k} {json.dumps(v)}" for k, v in options.items()) or "the model's own values")

    def do_stats(self, text: str) -> None:
        """/stats: tokens and times of the last answer, and of the conversation"""
        if self._chat.last is None:
            raise InvalidArgument("/stats: nothing was answered yet")
        for line in stats_lines(self._chat.last, self._chat.context):
            self._say(line)
        self._say(f"in all: {self._chat.answers} answers, {self._chat.all_generated} tokens generated")

    def do_bye(self, text: str) -> None:
        """/bye: end"""
        raise Ended


def stats_lines(stats: Stats, context: int = 0) -> list[str]:
    """Return the lines about one answer."""
    cached = f", {stats.cached_tokens} of them cached" if stats.cached_tokens else ""
    of = f" of {context}" if context else ""
    context_tokens = stats.prompt_tokens + stats.generated_tokens
    return [
        f"prompt {stats.prompt_tokens} tokens{cached}; answer {stats.generated_tokens} tokens "
        f"({stats.finish_reason or 'stopped'})",
        f"first token after {stats.first_seconds:.2f} s, then {stats.rate:.1f} tokens/s; "
        f"{stats.seconds:.2f} s in all; context {context_tokens}{of}",
    ]


def set_option(options: dict[str, Any], name: str, value: str) -> None:
    """Set a parameter of OPTIONS from text; "-" removes it. Raises InvalidArgument."""
    if value == "-":
        options.pop(name, None)
        return
    kind = OPTIONS[name]
    try:
        options[name] = kind(value)
    except ValueError:
        raise InvalidArgument(f"/set {name}: expected a number, got {value!r}") from None


def _needed(text: str, usage: str) -> str:
    if not text:
        raise InvalidArgument(f"expected {usage}")
    return text

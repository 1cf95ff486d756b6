"""A conversation with a model: what was said, the request for the next answer, and what answers cost."""

from __future__ import annotations

import base64
import difflib
import json
import mimetypes
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ovserve.cli.chat.connection import Connection
from ovserve.errors import InvalidArgument, LoadError, OvserveError

FORMAT = "ovserve.conversation.v1"
PATH = "/v3/chat/completions"


@dataclass
class Stats:
    """Numbers of one answer; seconds are those that the client measures."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first_seconds: float = 0.0
    seconds: float = 0.0
    finish_reason: str = ""
    stop_reason: str = ""

    @property
    def cut(self) -> str:
        """Return why the model could not end its answer itself, or nothing."""
        if self.finish_reason != "length":
            return ""
        return (
            "ended, because it only repeated itself" if self.stop_reason else "cut off at the limit of tokens"
        )

    @property
    def rate(self) -> float:
        """Return tokens per second after the first; 0 where that is unknown."""
        after = self.seconds - self.first_seconds
        return (self.generated_tokens - 1) / after if self.generated_tokens > 1 and after > 0 else 0.0


class Chunk(msgspec.Struct, frozen=True):
    """Text of an answer: of the answer itself, or of the reasoning before it."""

    text: str
    reasoning: bool = False


@dataclass
class Conversation:
    """`options` are parameters of each request, such as temperature. `context` is what the model takes, in
    tokens; 0 where unknown."""

    connection: Connection
    model: str
    context: int = 0
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)  # for the next message
    last: Stats | None = None
    answers: int = 0
    all_generated: int = 0

    def attach(self, path: Path) -> None:
        """Add an image to the next message. Raises LoadError, InvalidArgument."""
        if not self._sees():
            raise InvalidArgument(
                f"{self.model} takes no images; `ovserve run` a model with a vision encoder"
            )
        self.images.append({"type": "image_url", "image_url": {"url": image_url(path)}})

    def _sees(self) -> bool:
        """Return whether the model takes images, as far as the server says."""
        try:
            abilities = self.connection.post("/api/show", {"model": self.model})["capabilities"]
        except (OvserveError, KeyError, TypeError):
            return True  # the request will say
        return "vision" in abilities

    def ask(self, text: str) -> Iterator[Chunk]:
        """Say `text`; yield the answer, which then belongs to the conversation.

        An answer that was stopped is kept as far as it came. If nothing came, what was said is taken back.
        Raises RequestFailed, Unavailable.
        """
        content: Any = [*self.images, {"type": "text", "text": text}] if self.images else text
        question = {"role": "user", "content": content}
        self.messages.append(question)
        try:
            yield from self.answer()
        finally:
            if question in self.messages:
                self.images = []

    def answer(self) -> Iterator[Chunk]:
        """Yield an answer to what was said last."""
        texts: list[str] = []
        try:
            for chunk in self._streamed():
                if not chunk.reasoning:
                    texts.append(chunk.text)
                yield chunk
        finally:
            if texts:
                self.messages.append({"role": "assistant", "content": "".join(texts)})
                self.answers += 1
            else:
                self.messages.pop()

    def undo(self) -> str | None:
        """Take back the last question with its answer; return its text."""
        while self.messages:
            message = self.messages.pop()
            if message["role"] == "user":
                content = message["content"]
                return content if isinstance(content, str) else str(content[-1]["text"])
        return None

    def clear(self) -> None:
        self.messages, self.images, self.last = [], [], None

    def body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            "model": self.model,
            "messages": [*system, *self.messages],
            "stream": True,
            # with each chunk, so that an answer that is stopped has its numbers too
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **self.options,
        }

    def _streamed(self) -> Iterator[Chunk]:
        self.last = stats = Stats()
        began = time.monotonic()
        try:
            for event in self.connection.events(PATH, self.body()):
                stats.seconds = time.monotonic() - began
                if usage := event.get("usage"):
                    _count(stats, usage)
                for choice in event.get("choices", ()):
                    delta = choice.get("delta", {})
                    stats.finish_reason = choice.get("finish_reason") or stats.finish_reason
                    stats.stop_reason = choice.get("stop_reason") or stats.stop_reason
                    for name, reasoning in (("reasoning_content", True), ("content", False)):
                        if text := delta.get(name):
                            stats.first_seconds = stats.first_seconds or stats.seconds
                            yield Chunk(text, reasoning)
        finally:
            self.all_generated += stats.generated_tokens

    # -- files

    def save(self, path: Path) -> None:
        """Write it: as Markdown by the suffix .md, else as JSON that `load` reads. Raises LoadError."""
        if path.suffix == ".md":
            text = "".join(f"## {m['role']}\n\n{_text(m)}\n\n" for m in self.body()["messages"])
        else:
            settings = {"model": self.model, "system": self.system, "options": self.options}
            whole = {"format": FORMAT, **settings, "messages": self.messages}
            text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
        try:
            Path(os.path.expanduser(path)).write_text(text)
        except OSError as error:
            raise LoadError(f"cannot be written: {error.strerror}", file=str(path)) from error

    def load(self, path: Path) -> None:
        """Go on with a saved conversation. Raises LoadError."""
        try:
            saved = json.loads(Path(os.path.expanduser(path)).read_text())
        except OSError as error:
            raise LoadError(f"cannot be read: {error.strerror}", file=str(path)) from error
        except ValueError as error:
            raise LoadError(f"is not JSON: {error}", file=str(path)) from error
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise LoadError(f"is not a conversation saved by /save ({FORMAT})", file=str(path))
        self.clear()
        self.system, self.messages = saved["system"], saved["messages"]
        self.options = saved["options"]


def _count(stats: Stats, usage: Mapping[str, Any]) -> None:
    stats.prompt_tokens = usage.get("prompt_tokens", 0)
    stats.generated_tokens = usage.get("completion_tokens", 0)
    stats.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "(an image)") for part in content)


def image_url(path: Path) -> str:
    """Return an image as a data URL. Raises LoadError, InvalidArgument."""
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise InvalidArgument(f"{path}: expected an image by its suffix, such as .png or .jpg")
    try:
        data = Path(os.path.expanduser(path)).read_bytes()
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(path)) from error
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


# The commands of the chat, which begin with a slash. Each is a method whose docstring is its help.


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
        path = Path(os.path.expanduser(_needed(text, "/save FILE")))
        if path.exists() and path != self._saved and not self._confirm(f"{path} exists; overwrite it?"):
            self._say("not saved")
            return
        self._chat.save(path)
        self._saved = path
        self._say(f"saved to {path}")

    def do_load(self, text: str) -> None:
        """/load FILE: go on with a conversation that /save wrote"""
        path = Path(os.path.expanduser(_needed(text, "/load FILE")))
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

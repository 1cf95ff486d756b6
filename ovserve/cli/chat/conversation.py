"""A conversation with a model: what was said, the request for the next answer, and what answers cost."""

from __future__ import annotations

import base64
import json
import mimetypes
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Chunk:
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
            path.expanduser().write_text(text)
        except OSError as error:
            raise LoadError(f"cannot be written: {error.strerror}", file=str(path)) from error

    def load(self, path: Path) -> None:
        """Go on with a saved conversation. Raises LoadError."""
        try:
            saved = json.loads(path.expanduser().read_text())
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
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(path)) from error
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"

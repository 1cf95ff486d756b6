"""A request's body is read three times: its head, the walk over its keys, its struct."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ovserve.api.openai.body as body
from ovserve.api.anthropic import messages
from ovserve.api.openai import chat, completions
from tests.http.test_tools import DIALECTS, over

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Oslo?"}], "max_tokens": 4}
READERS: dict[str, tuple[ModuleType, str]] = {
    "head": (body, "_head"),
    "model": (body, "_model"),
    "optional model": (body, "_maybe_model"),
    "fields": (body, "_fields"),
    "chat struct": (chat, "_decoder"),
    "completions struct": (completions, "_decoder"),
    "messages struct": (messages, "_decoder"),
}


class Counted:
    def __init__(self, found: Counter[str], name: str, inner: Any) -> None:
        self._found, self._name, self._inner = found, name, inner
        self.type = inner.type

    def decode(self, data: bytes) -> Any:
        self._found[self._name] += 1
        return self._inner.decode(data)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each decoder has read a body."""
    found: Counter[str] = Counter()
    for name, (module, attribute) in READERS.items():
        monkeypatch.setattr(module, attribute, Counted(found, name, getattr(module, attribute)))
    walk = body._walk

    def counted(text: str) -> Any:
        found["keys"] += 1
        return walk(text)

    monkeypatch.setattr(body, "_walk", counted)
    return found


@pytest.mark.parametrize(
    ("path", "sent", "struct", "more"),
    [
        ("/v3/chat/completions", CHAT, "chat", {}),
        ("/v3/chat/completions", CHAT | {"stream": True}, "chat", {}),
        ("/v3/chat/completions", CHAT | {"zebra": 1}, "chat", {"fields": 1}),
        ("/v3/completions", {"model": "m", "prompt": "hi", "max_tokens": 4}, "completions", {}),
        ("/v3/messages", CHAT, "messages", {}),
        ("/openai/deployments/m/chat/completions", CHAT, "chat", {}),
    ],
    ids=["chat", "stream", "unknown field", "completions", "messages", "azure"],
)
async def test_each_body_is_decoded_once(
    tmp_path: Path, read: Counter[str], path: str, sent: dict[str, Any], struct: str, more: dict[str, int]
) -> None:
    marks, text, _ = DIALECTS["hermes3"]
    async with over(tmp_path, text, marks) as running:
        read.clear()
        answer = await running.http.post(path, json=sent)
    assert answer.status_code == 200, answer.text
    assert dict(read) == {"head": 1, "keys": 1, f"{struct} struct": 1} | more

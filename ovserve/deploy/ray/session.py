"""The session of a request: the key by which it is sent to the replica that has its prefix cached."""

from __future__ import annotations

import hashlib

import msgspec

SESSION_MESSAGES = 2  # messages: mostly the system's and the first of the user's, which no later turn changes
HEAD_BYTES = 4096  # of a body that was cut or is not an object


class _Body(msgspec.Struct):
    """The fields that a conversation begins with, in the APIs of OpenAI, Anthropic and Ollama. Values stay as
    they are written, so that a long body is only scanned."""

    model: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()


def session_of(body: bytes) -> str:
    """Return a key that all turns of a conversation have in common, "" for an empty body.

    Works for any bytes: the beginning of a body that is not a JSON object is its key.
    """
    if not body:
        return ""
    try:
        decoded = msgspec.json.decode(body, type=_Body)
        first = _first(decoded.messages) or _first(decoded.input)
    except msgspec.DecodeError:
        return _digest(body[:HEAD_BYTES])
    parts = (decoded.model, decoded.system, decoded.instructions, *first, bytes(decoded.prompt)[:HEAD_BYTES])
    return _digest(b"\0".join(map(bytes, parts)))


def _first(value: msgspec.Raw) -> tuple[bytes, ...]:
    raw = bytes(value)
    if not raw.startswith(b"["):
        return (raw[:HEAD_BYTES],) if raw else ()
    return tuple(bytes(item) for item in msgspec.json.decode(raw, type=list[msgspec.Raw])[:SESSION_MESSAGES])


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=12).hexdigest()

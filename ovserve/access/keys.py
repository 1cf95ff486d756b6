"""API keys: how one is made and hashed, and the file that lists them (TOML).

    [[key]]
    name = "team-a"                        # owns its stored responses; appears in the log
    hash = "sha256:9f86d0..."              # `ovserve key` prints the key once, and this line
    models = ["smollm2", "qwen*"]          # all if omitted; the same holds for every limit
    requests_per_minute = 60
    tokens_per_minute = 100_000
    requests_per_day = 10_000              # days begin at midnight UTC
    tokens_per_day = 5_000_000
    concurrency = 4
    max_queue = 2
    queue_timeout = 10
    request_timeout = 300
    weight = 2                             # twice the share of a full engine; 1 if omitted
    expires = 2027-01-01T00:00:00Z
    admin = true                           # may also reload and unload

A hash without salt or stretching is right here: a generated key has 256 random bits. There is no list of
likely keys to try, and hashing must cost almost nothing on every request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec

from ovserve.access.caller import Caller, Rights
from ovserve.errors import InvalidArgument, LoadError

MIN_KEY_CHARACTERS = 16  # characters of a key that was not generated here
PREFIX = "ovs-"  # lets scanners for leaked secrets recognize a key

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[!-~]+$")]
    hash: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    models: list[str] | None = None
    requests_per_minute: _Positive | None = None
    tokens_per_minute: _Positive | None = None
    requests_per_day: _Positive | None = None
    tokens_per_day: _Positive | None = None
    concurrency: _Positive | None = None
    max_queue: Annotated[int, msgspec.Meta(ge=0)] | None = None
    queue_timeout: _Seconds | None = None
    request_timeout: _Seconds | None = None
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    expires: datetime | None = None
    admin: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    key: list[_Key]


class Entry(msgspec.Struct, frozen=True):
    """One key in memory. `expires` is in Unix seconds."""

    caller: Caller
    expires: float | None = None


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def check_own_key(key: str) -> None:
    """Raise InvalidArgument for a user-chosen key that cannot be sent or is easily guessed."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidArgument("a key consists of printable ASCII characters without spaces")
    if len(key) < MIN_KEY_CHARACTERS:
        raise InvalidArgument(
            f"a key needs at least {MIN_KEY_CHARACTERS} characters, this one has {len(key)}"
        )


def entry_text(name: str, key: str) -> str:
    """Return the lines to append to the file. Raises InvalidArgument for a name that the file may not
    have."""
    try:
        msgspec.convert({"name": name, "hash": digest(key)}, _Key)
    except msgspec.ValidationError:
        raise InvalidArgument(f"a name consists of 1 to 64 visible ASCII characters, got {name!r}") from None
    return f'[[key]]\nname = {msgspec.json.encode(name).decode()}\nhash = "{digest(key)}"\n'


def load_key(path: Path) -> str:
    """Return the first line of OVMS's --api_key_file. Raises LoadError, which never contains the content."""
    first = (_read(path).splitlines() or [""])[0].rstrip()
    if not first:
        raise LoadError("the first line is empty; it must be the key", file=str(path))
    return first


def load_keys(path: Path, callers: Mapping[str, Caller] = MappingProxyType({})) -> dict[str, Entry]:
    """Return entries by hash. Those of `callers` keep their usage. Raises LoadError."""
    try:
        keys = msgspec.toml.decode(_read(path), type=_File).key
    except msgspec.DecodeError as exc:  # its messages show positions and types, never values
        raise LoadError(str(exc), file=str(path)) from None
    entries: dict[str, Entry] = {}
    names: set[str] = set()
    for key in keys:
        if key.name in names:
            raise LoadError(f"two keys are called {key.name!r}", file=str(path))
        if key.hash in entries:
            raise LoadError(f"the hash of {key.name!r} is also used by another key", file=str(path))
        names.add(key.name)
        entries[key.hash] = _entry(key, callers.get(key.name))
    return entries


def _entry(key: _Key, caller: Caller | None) -> Entry:
    rights = Rights(
        models=None if key.models is None else tuple(key.models),
        admin=key.admin,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        requests_per_day=key.requests_per_day,
        tokens_per_day=key.tokens_per_day,
        concurrency=key.concurrency,
        max_queue=key.max_queue,
        queue_timeout=key.queue_timeout,
        request_timeout=key.request_timeout,
        weight=key.weight,
    )
    if caller is None:
        caller = Caller(key.name, rights)
    else:
        caller.allow(rights)
    expires = key.expires
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return Entry(caller, None if expires is None else expires.timestamp())


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise LoadError(f"cannot be read: {getattr(exc, 'strerror', None) or exc}", file=str(path)) from None

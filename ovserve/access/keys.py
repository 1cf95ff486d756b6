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
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

from ovserve.access.caller import ANYONE, Caller, Rights
from ovserve.errors import InvalidArgument, LoadError, RateLimited, Unauthenticated

log = logging.getLogger(__name__)

MIN_KEY_CHARACTERS = 16  # characters of a key that was not generated here
PREFIX = "ovs-"  # lets scanners for leaked secrets recognize a key

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[!-~]+$")]
    hash: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    models: tuple[str, ...] | None = None
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
    rights = Rights(**{one.name: getattr(key, one.name) for one in fields(Rights)})
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


# The Guard maps the key a client presents to its Caller.
#
# The keys file is checked when a request comes and the last check is a second old. So a change takes effect
# without a signal or a timer, and a revoked key stops working within a second. A file that cannot be read or
# parsed leaves the old keys active and logs an error.


LOOK_SECONDS = 1.0
HEADERS = ("api-key", "x-api-key")  # Azure's, Anthropic's
# A page can send no header with a WebSocket, so its key is among the subprotocols that it offers.
PROTOCOLS, PROTOCOL_KEY = "sec-websocket-protocol", "openai-insecure-api-key."
CREDENTIALS = ("authorization", *HEADERS, PROTOCOLS)
SECRET = "ek_"  # begins the short-lived keys of realtime sessions
MAX_SECRETS = 10_000


class _Secret(NamedTuple):
    caller: Caller
    expires: int  # Unix seconds
    session: dict[str, Any]


class Guard:
    """Checks keys. With neither a key nor a file it accepts every client."""

    def __init__(self, key: str = "", keys_file: Path | None = None) -> None:
        """`key` is the single key of --api_key_file: no name, no limits. Raises LoadError."""
        self._single = {digest(key): Entry(Caller("", Rights(admin=True)))} if key else {}
        self._file = keys_file
        self._seen: object = None
        self._looked = 0.0
        self._entries: dict[str, Entry] = dict(self._single)
        if keys_file is not None:
            self._seen = stamp(keys_file)
            self._entries |= load_keys(keys_file)
        self._looked = time.monotonic()
        self._secrets: dict[str, _Secret] = {}  # by the digests of their values

    @property
    def required(self) -> bool:
        return bool(self._single) or self._file is not None

    @property
    def entries(self) -> list[Entry]:
        """Return the keys in force, without the keys themselves."""
        return list(self._entries.values())

    def caller(self, key: str | None) -> Caller:
        """Return the owner of `key`. Raises Unauthenticated."""
        if not self.required:
            return ANYONE
        self._look()
        if key is None:
            raise Unauthenticated("an API key is needed: send the header `Authorization: Bearer KEY`")
        presented, match = digest(key), None
        for stored, entry in self._entries.items():  # to the end, and each in constant time: 0.1 ms for 1,000
            if hmac.compare_digest(stored, presented):
                match = entry
        if match is None:
            raise Unauthenticated("Incorrect API key provided", wrong=True)  # LiteLLM looks for these words
        return _unexpired(match)

    def make_secret(self, caller: Caller, seconds: int, session: dict[str, Any]) -> tuple[str, int]:
        """Return a key that opens realtime sessions with a configuration in the name of `caller`, and when it
        expires. Raises RateLimited while too many have not expired."""
        now = time.time()
        if len(self._secrets) >= MAX_SECRETS:
            self._secrets = {key: secret for key, secret in self._secrets.items() if secret.expires > now}
        if len(self._secrets) >= MAX_SECRETS:
            raise RateLimited(f"{MAX_SECRETS} short-lived keys have not expired", retry_after=10.0)
        value, expires = SECRET + secrets.token_hex(16), int(now) + seconds
        self._secrets[digest(value)] = _Secret(caller, expires, session)
        return value, expires

    def is_secret(self, key: str | None) -> bool:
        return self._secret(key) is not None

    def secret_session(self, key: str | None) -> dict[str, Any]:
        """Return the configuration that a short-lived key is bound to; empty for other keys."""
        secret = self._secret(key)
        return secret.session if secret is not None else {}

    def session_caller(self, key: str | None) -> Caller:
        """Return the owner of a key, which may be short-lived. Raises Unauthenticated."""
        secret = self._secret(key)
        if secret is None or not self.required:
            return self.caller(key)
        return self.caller_named(secret.caller.name) if secret.caller.name else secret.caller

    def _secret(self, key: str | None) -> _Secret | None:
        if key is None or not key.startswith(SECRET):
            return None
        secret = self._secrets.get(digest(key))
        return secret if secret is not None and secret.expires > time.time() else None

    def caller_named(self, name: str) -> Caller:
        """Return the owner of what is done later in its name. Raises Unauthenticated."""
        if not self.required:
            return ANYONE
        if (entry := self._entry(name)) is None:
            raise Unauthenticated(f"the API key {name!r} was deleted")
        return _unexpired(entry)

    def knows(self, name: str) -> bool:
        return not self.required or self._entry(name) is not None

    def rights(self, name: str) -> Rights:
        entry = self._entry(name)
        return Rights() if entry is None else entry.caller.rights

    def _entry(self, name: str) -> Entry | None:
        self._look()
        return next((entry for entry in self._entries.values() if entry.caller.name == name), None)

    def _look(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if (identity := stamp(self._file)) == self._seen:
            return
        self._seen = identity
        callers = {e.caller.name: e.caller for e in self._entries.values()}
        try:
            self._entries = load_keys(self._file, callers) | self._single
        except LoadError as exc:
            log.error("the API keys are unchanged: %s", exc)
        else:
            log.info("%d API keys read from %s", len(self._entries) - len(self._single), self._file)


def _unexpired(entry: Entry) -> Caller:
    if entry.expires is not None and time.time() >= entry.expires:
        raise Unauthenticated("the API key has expired", wrong=True)
    return entry.caller


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key in HTTP headers or gRPC metadata; `headers` must look up names in lower case."""
    scheme, _, bearer = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        return bearer.strip()
    for name in HEADERS:
        if header := headers.get(name, ""):
            return header.strip()
    for offered in headers.get(PROTOCOLS, "").split(","):
        if (protocol := offered.strip()).startswith(PROTOCOL_KEY):
            return protocol.removeprefix(PROTOCOL_KEY)
    return None


def stamp(path: Path) -> object:
    """Return a value that differs after every change the file system can detect; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino

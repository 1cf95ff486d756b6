"""The Guard maps the key a client presents to its Caller.

The keys file is checked when a request comes and the last check is a second old. So a change takes effect
without a signal or a timer, and a revoked key stops working within a second. A file that cannot be read or
parsed leaves the old keys active and logs an error.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ovserve.access.caller import ANYONE, Caller, Rights
from ovserve.access.keys import Entry, digest, load_keys
from ovserve.errors import LoadError, RateLimited, Unauthenticated

LOOK_SECONDS = 1.0
HEADERS = ("api-key", "x-api-key")  # Azure's, Anthropic's
# A page can send no header with a WebSocket, so its key is among the subprotocols that it offers.
PROTOCOLS, PROTOCOL_KEY = "sec-websocket-protocol", "openai-insecure-api-key."
CREDENTIALS = ("authorization", *HEADERS, PROTOCOLS)
SECRET = "ek_"  # begins the short-lived keys of realtime sessions
MAX_SECRETS = 10_000

log = logging.getLogger(__name__)


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
            self._seen = _stamp(keys_file)
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
            raise Unauthenticated("the API key is not valid", wrong=True)
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
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return
        self._seen = stamp
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
    key = next((header.strip() for name in HEADERS if (header := headers.get(name, ""))), None)
    if key is not None:
        return key
    offered = (one.strip() for one in headers.get(PROTOCOLS, "").split(","))
    return next((one.removeprefix(PROTOCOL_KEY) for one in offered if one.startswith(PROTOCOL_KEY)), None)


def _stamp(path: Path) -> object:
    """Return a value that differs after every change the file system can detect; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino

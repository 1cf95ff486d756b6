"""The sockets of the HTTP server. They are bound first at start, because a port in use must not cost a model
load.

Clients that connect before the server reads wait in the socket's queue. That needs no aiohttp, so it happens
before aiohttp is imported.

The values of --rest_bind_address: addresses, names and unix:/path, separated by commas.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import re
import socket
import ssl
import stat
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ovserve.access.keys import stamp
from ovserve.errors import LoadError

# TLS of the server: a certificate with its key, and an optional CA for client certificates.
#
# The files are checked again when a connection comes and the last check is a second old, so a renewed
# certificate needs no restart. If it does not load, the old one stays in use, and an error is logged.


LOOK_SECONDS = 1.0
FAILURE_SECONDS = 60.0  # in which the failures of one cause are two lines of the log, however many they are

log = logging.getLogger(__name__)


class _Context(ssl.SSLContext):
    """Logs why handshakes of clients fail: their connections just close, and event loops say nothing."""

    def __init__(self, *_: Any) -> None:
        self.sslobject_class = _Handshake
        self._repeats: dict[str, int] = {}  # by the cause, which is a text of OpenSSL

    def report(self, cause: str) -> None:
        if cause in self._repeats:
            self._repeats[cause] += 1
            return
        self._repeats[cause] = 0
        log.info("a TLS handshake failed: %s", cause)
        asyncio.get_running_loop().call_later(FAILURE_SECONDS, self._sum_up, cause)

    def _sum_up(self, cause: str) -> None:
        if more := self._repeats.pop(cause):
            log.info("%d more TLS handshakes failed within %g s: %s", more, FAILURE_SECONDS, cause)


_FIRST_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# The first two are the certificate's validity.
_ASN1_TIME = re.compile(rb"\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z")


class _Handshake(ssl.SSLObject):
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLError as exc:
            if not isinstance(exc, ssl.SSLWantReadError) and isinstance(self.context, _Context):
                self.context.report(exc.strerror or str(exc))
            raise


class Certificate:
    """A certificate from PEM files; `certificate` holds the whole chain. Raises LoadError that names the
    file."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = [certificate, key]
        self._looked = time.monotonic()
        self._seen = [stamp(path) for path in self._files]
        self.context = _Context(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._load(self.context)
        warn_of_times(certificate)
        if client_ca is not None:
            try:
                self.context.load_verify_locations(client_ca)
            except OSError as exc:  # SSLError is a subclass
                raise LoadError(f"no CA certificates: {exc.strerror or exc}", file=str(client_ca)) from exc
            self.context.verify_mode = ssl.CERT_REQUIRED

    def refresh(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        stamps = [stamp(path) for path in self._files]
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # the context in use must not be half updated
            self._load(self.context)
        except LoadError as exc:
            log.error("the certificate is unchanged: %s", exc)
        else:
            log.info("the certificate was read again from %s", self._files[0])
            warn_of_times(self._files[0])

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        for path in self._files:
            if not path.is_file():
                raise LoadError("no such file", file=str(path))
        try:
            # otherwise it prompts for one in the terminal
            context.load_cert_chain(certificate, key, password="")
        except OSError as exc:
            why = exc.strerror or exc
            if b"ENCRYPTED" in key.read_bytes():  # of which OpenSSL says "PEM lib"
                why = "the key is encrypted; give one without a passphrase"
            raise LoadError(
                f"this certificate and the key {key} cannot be used: {why}", file=str(certificate)
            ) from exc


def warn_of_times(certificate: Path) -> None:
    """Log that a loaded certificate is not valid now: clients refuse it, and some do not say why."""
    block = _FIRST_CERTIFICATE.search(certificate.read_text("latin-1"))
    times = _ASN1_TIME.findall(ssl.PEM_cert_to_DER_cert(block[0])) if block is not None else []
    if len(times) < 2:  # it has another form
        return
    # RFC 5280: a year of two digits is one from 1950 to 2049.
    full = [long or (b"19" if short >= b"50" else b"20") + short for short, long in times[:2]]
    begin, end = (datetime.strptime(f"{each.decode()}+0000", "%Y%m%d%H%M%S%z") for each in full)
    if (now := datetime.now(UTC)) < begin:
        log.warning("the certificate %s is not valid before %s", certificate, begin)
    elif now > end:
        log.warning("the certificate %s has expired: it was valid until %s", certificate, end)


UNIX = "unix:"
ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # address to connect to a server that listens on all


def split(addresses: str) -> list[str]:
    return [one.strip() for one in addresses.split(",") if one.strip()]


def is_local(address: str) -> bool:
    """Return whether it is reachable from this machine only. A name other than localhost may be any
    address."""
    if address.startswith(UNIX) or address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def url(scheme: str, address: str, port: int) -> str:
    """Return the URL for a client on this machine."""
    if address.startswith(UNIX):
        return address
    host = ALL.get(address.strip("[]"), address.strip("[]"))
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


LISTEN_BACKLOG = 1024


class Sockets:
    def __init__(self) -> None:
        self.tcp: list[socket.socket] = []
        self.unix: list[socket.socket] = []
        self.port = 0  # of TCP; 0 with only Unix sockets
        self._paths: list[str] = []
        self._addresses: list[str] = []

    @classmethod
    def bind(cls, addresses: Sequence[str], port: int) -> Sockets:
        """Listen on all addresses. Raises LoadError.

        With port 0 the first address gets a free one and the others the same. A name means all its addresses
        that this machine has.
        """
        sockets = cls()
        sockets.port = port
        try:
            for address in addresses:
                if address.startswith(UNIX):
                    sockets._bind_unix(address.removeprefix(UNIX))
                else:
                    sockets._bind_tcp(address.strip("[]"))
                sockets._addresses.append(address)
        except OSError as exc:
            # getaddrinfo has its own numbers, which strerror does not know
            of_system = exc.errno is not None and not isinstance(exc, socket.gaierror)
            why = os.strerror(exc.errno or 0) if of_system else exc.strerror or exc
            where = address if address.startswith(UNIX) else f"{address}:{sockets.port}"
            sockets.close()
            raise LoadError(f"cannot listen on {where}: {why}") from exc
        return sockets

    def urls(self, *, tls: bool) -> list[str]:
        return [url("https" if tls else "http", address, self.port) for address in self._addresses]

    def close(self) -> None:
        """Accept no more connections, and remove socket files. The readers of the sockets also close them."""
        for one in (*self.tcp, *self.unix):
            one.close()
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._paths.clear()

    def _bind_tcp(self, host: str) -> None:
        infos = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        places = list(dict.fromkeys((family, place) for family, _, _, _, place in infos))
        missing: OSError | None = None
        bound = len(self.tcp)
        for family, place in places:
            try:
                listener = _listening(family, (place[0], self.port, *place[2:]))
            except OSError as exc:
                if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = exc
            else:
                self.tcp.append(listener)
                self.port = listener.getsockname()[1]
        if missing is not None and len(self.tcp) == bound:
            raise missing

    def _bind_unix(self, path: str) -> None:
        if not path:  # a socket without a name, which no client could find
            raise LoadError(f"{UNIX} needs a path, such as {UNIX}/run/ovserve.sock")
        _remove_dead_socket(path)
        self.unix.append(_listening(socket.AF_UNIX, path))
        self._paths.append(path)


def _listening(family: int, place: tuple[Any, ...] | str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)
        listener.listen(LISTEN_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_dead_socket(path: str) -> None:
    """Remove a socket that a killed server left behind, but not one with a listener."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "in use", path)

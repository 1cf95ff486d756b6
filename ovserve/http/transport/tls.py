"""TLS of the server: a certificate with its key, and an optional CA for client certificates.

The files are checked again when a connection comes and the last check is a second old, so a renewed
certificate needs no restart. If it does not load, the old one stays in use, and an error is logged.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from ovserve.errors import LoadError

LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)


class Certificate:
    """A certificate from PEM files; `certificate` holds the whole chain. Raises LoadError that names the
    file."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = [certificate, key]
        self._looked = time.monotonic()
        self._seen = self._stamps()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._load(self.context)
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
        stamps = self._stamps()
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

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        for path in self._files:
            if not path.is_file():
                raise LoadError("no such file", file=str(path))
        try:
            # otherwise it prompts for one in the terminal
            context.load_cert_chain(certificate, key, password="")
        except OSError as exc:
            raise LoadError(
                f"this certificate and the key {key} cannot be used: {exc.strerror or exc}",
                file=str(certificate),
            ) from exc

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                status = path.stat()
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                stamps.append(None)
        return stamps

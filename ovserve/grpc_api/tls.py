"""TLS of the gRPC server, from the same files as that of the HTTP server.

Before each handshake the library asks for a newer certificate, from its own thread.
"""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from ovserve.errors import LoadError

log = logging.getLogger(__name__)


def credentials(certificate: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Read PEM files, whose content `http/transport/tls.py` has checked. Raises LoadError for an unreadable
    one."""
    files = [path for path in (certificate, key, client_ca) if path is not None]
    seen = _stamps(files)

    def read() -> grpc.ServerCertificateConfiguration:
        pair = (key.read_bytes(), certificate.read_bytes())
        roots = client_ca.read_bytes() if client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            now = _stamps(files)
            if now == seen:
                return None
            seen = now
            return read()
        except OSError as exc:
            log.error("the certificate of gRPC is unchanged: %s", exc)
            return None

    try:
        # The stubs do not allow None, which the library takes for "unchanged".
        return grpc.dynamic_ssl_server_credentials(read(), newer, client_ca is not None)  # type: ignore[arg-type]
    except OSError as exc:
        raise LoadError(f"cannot be read: {exc.strerror}", file=str(exc.filename)) from exc


def _stamps(files: list[Path]) -> list[tuple[int, int, int]]:
    return [(s.st_mtime_ns, s.st_size, s.st_ino) for s in (path.stat() for path in files)]

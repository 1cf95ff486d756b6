"""Where the HTTP server listens: what --rest_bind_address may hold. Used by `server.py`."""

from __future__ import annotations

import ipaddress

UNIX = "unix:"


def is_local(address: str) -> bool:
    """Only this machine can reach it. A name other than localhost may be anything."""
    if address.startswith(UNIX) or address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False

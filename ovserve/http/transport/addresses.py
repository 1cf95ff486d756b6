"""What --rest_bind_address may hold: addresses, names and unix:/path, separated by commas.

Used by `sockets.py` and `server.py`.
"""

from __future__ import annotations

import ipaddress

UNIX = "unix:"
ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # what to connect to, to reach one that listens on all


def split(addresses: str) -> list[str]:
    return [one.strip() for one in addresses.split(",") if one.strip()]


def is_local(address: str) -> bool:
    """Only this machine can reach it. A name other than localhost may be anything."""
    if address.startswith(UNIX) or address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def url(scheme: str, address: str, port: int) -> str:
    """Where a client on this machine finds it."""
    if address.startswith(UNIX):
        return address
    host = ALL.get(address.strip("[]"), address.strip("[]"))
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

"""The values of --rest_bind_address: addresses, names and unix:/path, separated by commas."""

from __future__ import annotations

import ipaddress

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

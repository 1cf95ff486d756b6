"""Decide which requests of browsers may change this server.

Without keys the server trusts everyone who reaches it, and any page that an operator visits could send
requests to 127.0.0.1. So a request that a browser marks as another site's is rejected for calls of the
console and of administration. For the console's calls, `Host` must be an address, localhost or a name the
server listens on as well: else a foreign name could be pointed at this machine (DNS rebinding). A key does
not travel by itself, so with keys neither is needed for administration.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from ovserve.errors import PermissionDenied

SAME = ("same-origin", "none")


def check_site(headers: Mapping[str, str]) -> None:
    """Raise PermissionDenied for a request that a page of another site makes. `headers` ignore case."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        same = site in SAME
    elif origin is not None:
        same = urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()
    else:
        same = True  # curl and SDKs: not a browser
    if not same:
        raise PermissionDenied("this call is for pages of this server; the request comes from another site")


def check_host(headers: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise PermissionDenied unless `Host` is an address, localhost or one of `names`."""
    host = urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise PermissionDenied(
            f"the server has no API key, so the console answers only under an address or localhost, "
            f"not {host!r}; set --api_key_file or --api_keys_file, or name it in --rest_bind_address"
        ) from None

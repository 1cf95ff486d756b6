"""The policy for external images in requests: --allowed_media_domains and --allowed_local_media_path.

A URL must pass two checks. Its host must be listed, exactly as OVMS compares it, or the list must be `all`.
And every address the host resolves to must be public: not private, link-local, loopback, multicast or
reserved, not even inside an IPv6 form. An operator with internal images lists the address or network too:
with `images.corp,10.1.0.0/16` the name may resolve into that network, and `http://10.1.2.3/` is allowed as
well.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import msgspec

from ovserve.errors import LoadError

ALL = "all"
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Global by registration, but routes to an IPv4 address that no check has seen.
_TRANSLATED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))


class Policy(msgspec.Struct, frozen=True):
    """The rules. The default allows only images that are part of the request."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    any_host: bool = False
    directory: Path | None = None  # resolved

    @property
    def urls(self) -> bool:
        """Return whether any URL may be fetched."""
        return bool(self.any_host or self.hosts or self.networks)

    def allows_host(self, host: str) -> bool:
        """Check a host in the form of the URL: lower case, an IPv6 address without brackets."""
        address = as_address(host)
        if address is not None:
            listed = any(address in network for network in self.networks)
            return listed or (self.any_host and is_public(address))
        return self.any_host or host in self.hosts

    def allows_address(self, text: str) -> bool:
        """Check an address that an allowed host resolved to."""
        address = as_address(text)
        return address is not None and (
            is_public(address) or any(address in network for network in self.networks)
        )


def as_address(text: str) -> Address | None:
    """Parse an address; an IPv4 address in an IPv6 form becomes that IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def is_public(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not any(address.version == n.version and address in n for n in _TRANSLATED)
    )


def parse_policy(domains: str, directory: str) -> Policy:
    """Parse the two options. Raises LoadError naming the option."""
    entries = [entry for part in domains.split(",") if (entry := part.strip().lower())]
    networks = [network for entry in entries if (network := _network(entry)) is not None]
    names = [entry for entry in entries if _network(entry) is None]
    for name in names:
        if not _NAME.fullmatch(name):
            raise LoadError(
                f"--allowed_media_domains: expected host names, addresses or networks separated by commas, "
                f"or {ALL}; got {name!r}. Hosts are compared exactly, without scheme, port or wildcard."
            )
    if ALL in names and len(names) > 1:
        raise LoadError(f"--allowed_media_domains: {ALL} already allows every host; remove the other names")
    return Policy(
        frozenset(names) - {ALL}, tuple(networks), any_host=ALL in names, directory=_directory(directory)
    )


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


def _directory(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text).resolve()
    if not path.is_dir():
        raise LoadError(f"--allowed_local_media_path: {path} is not a directory")
    return path

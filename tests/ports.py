"""Ports for servers that must be told one."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_ANY = Path("/proc/sys/net/ipv4/ip_local_port_range")
_chance = random.SystemRandom()


def free_port() -> int:
    """A port that nobody has, and that the kernel gives to nobody who asks for any.

    A server takes it a second later. Until then the other process of pytest makes hundreds of connections and
    servers, each of which could get one of the kernel's.
    """
    first = int(_ANY.read_text().split()[0])
    for _ in range(1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", _chance.randrange(10_000, max(first, 20_000))))
            port: int = probe.getsockname()[1]
            return port
    raise RuntimeError("no port is free")

"""The HTTP sockets of a server, bound before anything is loaded: a port in use must not cost a model load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ovserve.http.sockets import Sockets, split
from ovserve.server.settings import Settings


@dataclass(frozen=True)
class Listening:
    """`metrics` has no sockets without --metrics_port."""

    api: Sockets
    metrics: Sockets

    def close(self) -> None:
        """Accept no more connections; any number of times."""
        self.api.close()
        self.metrics.close()


@contextmanager
def listening(settings: Settings) -> Iterator[Listening]:
    """Bind, and close at the end. Raises LoadError."""
    bound = Listening(Sockets.bind(split(settings.rest_bind_address), settings.rest_port), Sockets())
    try:
        if settings.metrics_port:
            metrics = Sockets.bind(split(settings.metrics_bind_address), settings.metrics_port)
            bound = Listening(bound.api, metrics)
        yield bound
    finally:
        bound.close()

"""The surroundings of a server: options from text, its sockets, and the list of running servers.

Options are the environment variables of `ovserve serve`, and the values on its command line.
"""

from __future__ import annotations

import difflib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import Field
from pathlib import Path
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.http.sockets import UNIX, Sockets, split
from ovserve.server.settings import OPTIONS, Settings

# The list of this user's running servers, so that `ovserve run` loads no second copy of a model.
#
# A server that listens on TCP writes its address to a file with its process id as name, in a directory that
# only this user can enter. Without such a directory it is not listed, and serves all the same.


log = logging.getLogger(__name__)


@contextmanager
def listed(url: str) -> Iterator[None]:
    """List this process as a server at `url` while the context is entered."""
    file = None
    if not url.startswith(UNIX):
        try:
            directory = _directory()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(directory):
                file = directory / str(os.getpid())
                file.write_text(url)
        except OSError as error:
            log.debug("this server is not listed for `ovserve run`: %s", error)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                file.unlink(missing_ok=True)


def running_servers() -> list[str]:
    """Return the addresses of servers whose process lives, the youngest first; remove the others' files."""
    times: dict[str, int] = {}
    directory = _directory()
    with suppress(OSError):
        for file in directory.iterdir() if _is_private(directory) else ():
            with suppress(OSError, ValueError):
                if Path(f"/proc/{int(file.name)}").exists():
                    times[file.read_text()] = file.stat().st_mtime_ns
                else:
                    file.unlink()
    return sorted(times, key=lambda url: -times[url])


def _directory() -> Path:
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "ovserve"
    return Path(tempfile.gettempdir()) / f"ovserve-{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Return whether no other user can have written an address into it."""
    state = directory.lstat()
    return state.st_uid == os.getuid() and not state.st_mode & 0o022 and not directory.is_symlink()


# The HTTP sockets, bound before anything is loaded: a port in use must not cost a model load.


class Listening(msgspec.Struct, frozen=True):
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


PREFIX = "OVSERVE_"
# OVMS's variables without an option here. Those of cloud storage are named where a path is in one.
_OVMS = {
    "OVMS_GRAPH_QUEUE_OFF": "graphs are not pooled",
    "OVMS_MEDIA_URL_ALLOW_REDIRECTS": "redirects within --allowed_media_domains are followed",
    "OVMS_AUDIO_MAX_FILE_SIZE_BYTES": "see --max_audio_bytes",
    "GRPC_SERVERS": "one event loop serves all connections",
    **dict.fromkeys(("DROGON_LOG_LEVEL", "GLOG_minloglevel"), "see --log_level"),
    **dict.fromkeys(
        (
            "GIT_OPT_SET_SERVER_CONNECT_TIMEOUT",
            "GIT_OPT_SET_SERVER_TIMEOUT",
            "GIT_OPT_SET_SSL_CERT_LOCATIONS",
            "GIT_OPT_SET_ENABLE_SEARCH_PATHS",
        ),
        "models are not fetched by git",
    ),
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_WORDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}


def variables(option: Field[Any]) -> tuple[str, ...]:
    """The environment variables of an option; the first that is set counts."""
    return (PREFIX + option.name.upper(), *option.metadata["environment"])


def parse(option: Field[Any], text: str) -> Any:
    """The value written as `text` on a command line or in the environment. Raises InvalidArgument."""
    kind: Any = type(option.default)
    try:
        value = _TRUTH[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise InvalidArgument(f"expected {_WORDS[kind]}, got {text!r}") from None
    if (choices := option.metadata["choices"]) and value not in choices:
        raise InvalidArgument(f"expected one of {', '.join(choices)}, got {text!r}")
    return value


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values by option name. Raises InvalidArgument that names the variable."""
    values = {}
    for one in OPTIONS:
        for name in variables(one):
            text = environ.get(name, "")
            if text and not _of_kubernetes(name, text):
                try:
                    values[one.name] = parse(one, text)
                except InvalidArgument as exc:
                    raise InvalidArgument(f"{name}: {exc}") from None
                break
    return values


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable of this server or of OVMS that does not belong to an option."""
    names = [name for one in OPTIONS for name in variables(one)]
    ovms = [
        f"environment variable {name} has no effect: {_OVMS.get(name, 'it is not an option here')}"
        for name, text in environ.items()
        if text and (name in _OVMS or (name.startswith("OVMS_") and name not in names))
    ]
    return ovms + [
        f"environment variable {name} does not name an option{nearest(name, names)}"
        for name, text in environ.items()
        if name.startswith(PREFIX) and name not in names and not _of_kubernetes(name, text)
    ]


def nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_").replace("__", "--", 1), names, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _of_kubernetes(name: str, text: str) -> bool:
    """Return whether Kubernetes sets this variable in pods next to a Service called ovserve, such as
    OVSERVE_SERVICE_HOST and OVSERVE_PORT=tcp://10.0.0.1:8000."""
    return text.startswith(("tcp://", "udp://")) or name.startswith((PREFIX + "SERVICE_", PREFIX + "PORT_"))

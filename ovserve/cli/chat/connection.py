"""HTTP to a server, over TCP or a Unix socket: JSON answers, and streams of events.

The standard library is enough for one request at a time, and starts in a third of the time of an HTTP client.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO
from urllib.parse import SplitResult, urlsplit

from ovserve.cli.local import repository
from ovserve.cli.parser import spelling
from ovserve.errors import InvalidArgument, LoadError, OvserveError, Unavailable
from ovserve.pull.graph_text import OptionValue
from ovserve.scratch import scratch_directory

# The server of `run` and `batch`, in a process of its own: it ends with the process that has started it.
#
# That one holds the other end of stdin, so that even a killed `ovserve run` leaves no server.


POLL_SECONDS = 0.05
END_SECONDS = 5.0
_NAMES = ("SOURCE", "MODEL_", "CONFIG", "GRAPHS", "REST_", "GRPC_", "TLS_", "API_", "LOG_")
OF_ANOTHER = tuple(f"OVSERVE_{name}" for name in _NAMES)  # variables of a server that has other clients
SHOWN_LINES = 8  # of the log of a server that did not start


@contextmanager
def own_server(
    model: str, options: Mapping[str, OptionValue], flags: Sequence[str] = (), store: Path | None = None
) -> Iterator[Connection]:
    """Yield a server of its own with a model, pulled before if needed, where the user sees it.

    It listens on a socket in a directory that only this user can enter. `store`: the file of
    --response_store_path, for work that outlives the server. Raises LoadError with the end of its log.
    """
    from ovserve.cli.progress import Shown, waiting  # not needed in the process of the server
    from ovserve.server.settings import Settings
    from ovserve.server.source import resolve

    settings = Settings(source_model=model, model_repository_path=str(repository()))
    resolve(settings, options, Shown(sys.stderr))
    command = [sys.executable, "-m", __name__, "serve", *([model] if model else []), *flags]
    command += [part for name, value in options.items() for part in (f"--{name}", spelling(value))]
    command += ["--response_store", "off"] if store is None else ["--response_store_path", str(store)]
    command += ["--file_system_poll_wait_seconds", "0", "--model_repository_path", str(repository())]
    environment = {k: v for k, v in os.environ.items() if k != "API_KEY" and not k.startswith(OF_ANOTHER)}
    with scratch_directory("ovserve-run-") as place:
        address = f"{UNIX}{place}/s"
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--rest_bind_address", address, "--grpc_port", "0"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C stops an answer, not the server
            )
        try:
            connection = Connection(address)
            with waiting(sys.stderr, f"loading {model or 'the default model'}"):
                while not connection.ready():
                    if process.poll() is not None:
                        raise LoadError(_last_lines(place / "log"))
                    time.sleep(POLL_SECONDS)
            yield connection
        finally:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()  # the server ends by itself
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    ours = ("ovserve: ", "ovserve serve: ")
    messages = [line.removeprefix(ours[0]) for line in lines if line.startswith(ours)]
    return "\n".join(messages or lines[-SHOWN_LINES:]) or "the server ended without a word"


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)  # answers that no one reads are not waited for


if __name__ == "__main__":
    from ovserve.cli import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(sys.argv[1:])


UNIX = "unix:"
UPLOAD_CHUNK = 256 * 1024  # bytes of a file
PROBE_SECONDS = 1.0  # for a server that may not be there
RELOAD_SECONDS = 3600.0  # a reload answers when all models are loaded


class RequestFailed(OvserveError):
    """The server's own error, in its words."""

    kind = "failed_precondition"

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code_of_server = status, code


def address_parts(address: str) -> SplitResult:
    """Return the parts of a server's address. Raises InvalidArgument for one that has no host."""
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            http.client.HTTPConnection(parts.hostname)  # raises for what no name has
            return parts
    except (ValueError, http.client.InvalidURL):
        pass
    raise InvalidArgument(f"expected an address such as http://127.0.0.1:8000, got {address!r}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Connection:
    """`address` is HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH; paths of it are kept.

    Every call opens a connection of its own, and closing it cancels the request.
    """

    def __init__(self, address: str, key: str = "") -> None:
        """Raises InvalidArgument."""
        if "://" not in address and not address.startswith(UNIX):
            address = f"http://{address}"
        parts = None if address.startswith(UNIX) else address_parts(address)
        self.address = address.rstrip("/")
        self._key = key
        # With or without the version: other clients of the server are given both.
        path = "" if parts is None else parts.path.rstrip("/")
        self._prefix = path.removesuffix("/v1").removesuffix("/v3")

    def get(self, path: str, timeout: float | None = None) -> Any:
        """Return the JSON of an answer. Raises Unavailable, RequestFailed."""
        return self._json("GET", path, None, timeout)[1]

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Like `get`, with a body."""
        return self._json("POST", path, body, None)[1]

    def reload(self) -> tuple[bool, Any]:
        """Make the server read its configuration again. Return whether it had changed, and the states. Raises
        as `get`."""
        status, states = self._json("POST", "/v1/config/reload", None, RELOAD_SECONDS)
        return status == http.client.CREATED, states

    def upload(self, path: str, file: BinaryIO, size: int, fields: Mapping[str, str]) -> Any:
        """Send a form with a file; return the JSON of the answer. Raises as `get`."""
        boundary = secrets.token_hex(16)
        part = f"--{boundary}\r\nContent-Disposition: form-data; name="
        head = "".join(f'{part}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
        head += f'{part}"file"; filename="file"\r\n\r\n'
        tail = f"\r\n--{boundary}--\r\n"
        length = len(head) + size + len(tail)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(length)}
        chunks = itertools.chain([head.encode()], iter(lambda: file.read(UPLOAD_CHUNK), b""), [tail.encode()])
        with closing(self._open("POST", path, chunks, None, headers)) as connection:
            return json.loads(self._answered(connection).read())

    def download(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of an answer. Raises as `get`."""
        with closing(self._open("GET", path, None, None)) as connection:
            answer = self._answered(connection)
            while chunk := answer.read(UPLOAD_CHUNK):
                yield chunk

    def text(self, path: str, timeout: float | None = None) -> str:
        """Return an answer that is not JSON. Raises as `get`."""
        return self._read("GET", path, None, timeout)[1].decode("utf-8", "replace")

    def ready(self) -> bool:
        try:
            with closing(self._open("GET", "/v2/health/ready", None, PROBE_SECONDS)) as connection:
                return connection.getresponse().status == 200
        except (Unavailable, OSError, http.client.HTTPException):
            return False

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream. Raises RequestFailed for an error before or within it, and
        Unavailable when it breaks off."""
        with closing(self._open("POST", path, body, None)) as connection:
            answer = self._answered(connection)
            try:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    if (data := line[6:].strip()) == b"[DONE]":
                        return
                    event = json.loads(data)
                    if "error" in event:
                        raise _failed(event, answer.status)
                    yield event
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(f"the answer broke off: {error or type(error).__name__}") from error
            raise Unavailable("the answer broke off: the server closed the connection")

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float | None
    ) -> tuple[int, Any]:
        status, answer = self._read(method, path, body, timeout)
        try:
            return status, json.loads(answer)
        except ValueError as error:
            raise Unavailable(f"{self.address} does not answer as ovserve does") from error

    def _read(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float | None
    ) -> tuple[int, bytes]:
        with closing(self._open(method, path, body, timeout)) as connection:
            answer = self._answered(connection)
            try:
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(f"{self.address}: {error or type(error).__name__}") from error

    def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Iterator[bytes] | None,
        timeout: float | None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> http.client.HTTPConnection:
        headers = {**headers, **({"Authorization": f"Bearer {self._key}"} if self._key else {})}
        data: bytes | Iterator[bytes] | None = None
        if isinstance(body, Mapping):
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        elif body is not None:
            data = body
        connection = self._connection(timeout)
        try:
            connection.request(method, self._prefix + path, data, headers)
        except (
            OSError,
            ValueError,
            http.client.HTTPException,
        ) as error:  # a name or a key that cannot be sent
            connection.close()
            raise Unavailable(f"{self.address}: {getattr(error, 'strerror', None) or error}") from error
        return connection

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        if self.address.startswith(UNIX):
            return _UnixConnection(self.address.removeprefix(UNIX), timeout)
        parts = urlsplit(self.address)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _answered(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        try:
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _failed(answer.read(), answer.status)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.address}: {error or type(error).__name__}") from error
        return answer


def _failed(answer: bytes | Mapping[str, Any], status: int) -> RequestFailed:
    try:
        body = json.loads(answer) if isinstance(answer, bytes) else answer
        error = body["error"]
        if isinstance(error, str):
            return RequestFailed(error, status)
        return RequestFailed(str(error["message"]), status, str(error.get("code") or ""))
    except (ValueError, KeyError, TypeError):
        text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
        return RequestFailed(f"status {status}: {text[:200]}", status)

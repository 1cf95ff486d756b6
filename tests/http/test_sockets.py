"""The sockets that are there before the server that answers at them: addresses, and who comes early."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ovserve.errors import LoadError
from ovserve.http.sockets import Sockets
from tests.conftest import ROOT, script_graph, start_server
from tests.ports import free_port


def resolving(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Every name is these addresses."""
    places = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (host, 0, 0, 0))
        if ":" in host
        else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0))
        for host in hosts
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)


def names(sockets: Sockets) -> list[Any]:
    return [one.getsockname()[:2] for one in sockets.tcp]


def connect(address: tuple[str, int]) -> None:
    with socket.socket() as client:  # create_connection would ask getaddrinfo
        client.connect(address)


def test_all_addresses_of_a_name_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "127.0.0.3", "127.0.0.4", "127.0.0.3")
    sockets = Sockets.bind(["name.example"], 0)
    try:
        assert names(sockets) == [("127.0.0.3", sockets.port), ("127.0.0.4", sockets.port)]
        assert sockets.urls(tls=True) == [f"https://name.example:{sockets.port}"]
        for one in names(sockets):
            connect(one)
    finally:
        sockets.close()
    with pytest.raises(ConnectionRefusedError):
        connect(("127.0.0.3", sockets.port))


def test_of_a_name_what_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost where the machine has no IPv6, and the file of hosts says it had."""
    resolving(monkeypatch, "2001:db8::1", "127.0.0.1")
    sockets = Sockets.bind(["localhost"], 0)
    assert names(sockets) == [("127.0.0.1", sockets.port)]
    sockets.close()
    resolving(monkeypatch, "2001:db8::1", "192.0.2.1")
    with pytest.raises(LoadError, match=r"cannot listen on localhost:0: Cannot assign requested address"):
        Sockets.bind(["localhost"], 0)


def test_a_port_that_is_taken_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "s.sock"
        with pytest.raises(LoadError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Sockets.bind([f"unix:{path}", "127.0.0.2", "127.0.0.1"], port)
    assert not path.exists()
    Sockets.bind(["127.0.0.2"], port).close()


@pytest.mark.parametrize(
    ("path", "says"), [("x" * 200, "x: AF_UNIX path too long"), ("", "unix: needs a path")]
)
def test_a_path_that_no_socket_can_have(path: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        Sockets.bind([f"unix:{path}"], 0)


def test_who_connects_before_there_is_a_server_is_answered(tmp_path: Path) -> None:
    port = free_port()
    answers: list[bytes] = []
    failed: list[str] = []

    def ask() -> None:
        deadline = time.monotonic() + 230
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=230) as early:
                    early.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    answers.append(early.recv(1 << 16))
                    return
            except ConnectionRefusedError:
                time.sleep(0.001)  # nothing else tells that it listens
            except OSError as error:
                failed.append(str(error))
                return

    asking = threading.Thread(target=ask)
    asking.start()
    server = start_server(script_graph(tmp_path / "g", "{}"), "--rest_port", str(port), name="m")
    try:
        asking.join(30)
        assert not failed
        assert answers[0].startswith(b"HTTP/1.1 200 ")
    finally:
        assert server.stop() == 0


def test_what_an_engine_waits_for_imports_no_http_server() -> None:
    """What stands before the first Load; the rest is imported while the engine loads."""
    code = "import sys, ovserve.server.server; print([m for m in ('aiohttp', 'grpc', 'ovserve.server.frontends') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""TLS, certificates that change, client certificates, several addresses, unix sockets; with a real server."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from ovserve.errors import LoadError
from ovserve.http import sockets
from ovserve.http.sockets import Certificate, is_local, split, url
from tests.conftest import script_graph, start_server, until


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def write(ca: trustme.CA, directory: Path) -> tuple[Path, Path]:
    made = ca.issue_cert("127.0.0.2", "127.0.0.1")
    made.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    made.private_key_pem.write_to_path(directory / "key.pem")
    return directory / "cert.pem", directory / "key.pem"


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def serial(ca: trustme.CA, port: int) -> object:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        trusting(ca).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        return (secure.getpeercert() or {})["serialNumber"]


def test_tls_a_unix_socket_and_two_addresses_at_once(tmp_path: Path, ca: trustme.CA) -> None:
    cert, key = write(ca, tmp_path)
    path = tmp_path / "ovserve.sock"
    flags = ["--tls_cert_file", str(cert), "--tls_key_file", str(key), "--read_timeout", "10"]
    flags += ["--rest_bind_address", f"127.0.0.1,127.0.0.2,unix:{path}"]
    server = start_server(script_graph(tmp_path / "g", "{}"), *flags, name="m")
    try:
        assert server.url.startswith("https://127.0.0.1:")
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        with httpx.Client(verify=trusting(ca)) as http:
            for host in ("127.0.0.1", "127.0.0.2"):
                answer = http.post(f"https://{host}:{server.port}/v3/chat/completions", json=body)
                assert answer.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{server.port}/v3/models")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", server.port)) as plain, pytest.raises(ssl.SSLError):
            old.wrap_socket(plain)

        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://ovserve") as http:
            assert http.get("/v3/models").json()["data"][0]["id"] == "m"

        before = serial(ca, server.port)
        write(ca, tmp_path)
        until(
            lambda: serial(ca, server.port) != before, what="a renewed certificate is used without a restart"
        )  # it looks at most once a second

        assert not [line for line in server.errors if "ANYONE" in line]
    finally:
        assert server.stop() == 0
    assert not path.exists()


def test_clients_need_a_certificate_if_so_configured(tmp_path: Path, ca: trustme.CA) -> None:
    cert, key = write(ca, tmp_path)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    flags = ["--tls_cert_file", str(cert), "--tls_key_file", str(key)]
    flags += ["--tls_client_ca_file", str(tmp_path / "ca.pem")]
    server = start_server(script_graph(tmp_path / "g", "{}"), *flags, name="m")
    try:
        with httpx.Client(verify=trusting(ca)) as http, pytest.raises(httpx.TransportError):
            http.get(server.v3 + "/models")
        known = trusting(ca)
        ca.issue_cert("a-client.example").configure_cert(known)
        with httpx.Client(verify=known) as http:
            assert http.get(server.v3 + "/models").status_code == 200
        failures = [line for line in server.errors if "a TLS handshake failed" in line]
        assert [line.partition("failed: ")[2][:39] for line in failures] == [
            "[SSL: PEER_DID_NOT_RETURN_A_CERTIFICATE"
        ]
    finally:
        server.stop()


async def test_of_handshakes_that_fail_alike_two_lines_are_written(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(sockets, "FAILURE_SECONDS", 0.0)
    context = Certificate(*write(ca, tmp_path)).context

    def connect(received: bytes) -> None:
        incoming = ssl.MemoryBIO()
        incoming.write(received)
        with pytest.raises(ssl.SSLError):
            context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()

    for _ in range(100):
        connect(b"GET / HTTP/1.1\r\n\r\n")
        connect(b"no TLS at all")
    assert len(caplog.records) == 2
    await asyncio.sleep(0.01)
    connect(b"GET / HTTP/1.1\r\n\r\n")
    lines = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert lines[::2] == [
        "a TLS handshake failed: [SSL: HTTP_REQUEST] http request",
        "99 more TLS handshakes failed within 0 s: [SSL: HTTP_REQUEST] http request",
        "a TLS handshake failed: [SSL: HTTP_REQUEST] http request",
    ]
    assert lines[3].startswith("99 more TLS handshakes failed within 0 s: ")


def test_a_renewed_certificate_that_does_not_load_leaves_the_old_one(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "LOOK_SECONDS", 0.0)
    cert, key = write(ca, tmp_path)
    certificate = Certificate(cert, key)
    key.write_text("nonsense")
    certificate.refresh()
    certificate.refresh()
    assert [r.getMessage()[:30] for r in caplog.records] == ["the certificate is unchanged: "]


@pytest.mark.parametrize("missing", ["cert", "key", "ca", "other key"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, ca: trustme.CA, missing: str) -> None:
    cert, key = write(ca, tmp_path)
    client_ca = None
    if missing == "other key":
        ca.issue_cert("x.example").private_key_pem.write_to_path(key)
        named = key
    elif missing == "ca":
        named = client_ca = tmp_path / "ca.pem"
    else:
        named = {"cert": cert, "key": key}[missing]
        named.unlink()
    with pytest.raises(LoadError, match=str(named)):
        Certificate(cert, key, client_ca)


def test_an_encrypted_key_is_called_so(tmp_path: Path, ca: trustme.CA) -> None:
    certificate, key = write(ca, tmp_path)
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
        encryption = serialization.BestAvailableEncryption(b"x")
        key.write_bytes(plain.private_bytes(serialization.Encoding.PEM, form, encryption))
        with pytest.raises(LoadError, match="the key is encrypted; give one without a passphrase"):
            Certificate(certificate, key)


def test_a_socket_of_a_dead_server_is_taken_over_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    graph = script_graph(tmp_path / "g", "{}")
    server = start_server(graph, "--rest_bind_address", f"unix:{path}", name="m")
    try:
        with pytest.raises(RuntimeError, match=f"cannot listen on unix:{path}: Address already in use"):
            start_server(graph, "--rest_bind_address", f"unix:{path}", name="m")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as http:
            assert http.get("/v2/health/ready").status_code == 200
    finally:
        assert server.stop() == 0


def test_listening_on_all_without_a_key_warns_loudly(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "g", "{}")
    for flags, warned in (([], True), (["--api_key_file", str(tmp_path / "key")], False)):
        (tmp_path / "key").write_text("a-key-in-a-file\n")
        server = start_server(graph, "--rest_bind_address", "0.0.0.0", *flags, name="m")
        try:
            assert server.url.startswith("http://127.0.0.1:")
            status = httpx.get(server.v3 + "/models").status_code
            assert status == (200 if warned else 401)
            said = [line for line in server.errors if "ANYONE who can reach 0.0.0.0" in line]
            assert bool(said) is warned
        finally:
            server.stop()


@pytest.mark.parametrize(
    ("address", "local", "found_at"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:80"),
        ("127.1.2.3", True, "http://127.1.2.3:80"),
        ("::1", True, "http://[::1]:80"),
        ("[::1]", True, "http://[::1]:80"),
        ("localhost", True, "http://localhost:80"),
        ("unix:/a", True, "unix:/a"),
        ("0.0.0.0", False, "http://127.0.0.1:80"),
        ("::", False, "http://[::1]:80"),
        ("10.0.0.1", False, "http://10.0.0.1:80"),
        ("host.example", False, "http://host.example:80"),
    ],
)
def test_addresses(address: str, local: bool, found_at: str) -> None:
    assert is_local(address) is local
    assert url("http", address, 80) == found_at
    assert split(f" {address} ,, x") == [address, "x"]


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [(-400, 400, ""), (-400, -1, "has expired: it was valid until"), (1, 400, "is not valid before")],
)
@pytest.mark.parametrize("far", [0, 40 * 365])
def test_a_certificate_that_is_not_valid_now_is_warned_of(
    tmp_path: Path,
    ca: trustme.CA,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    first: int,
    last: int,
    says: str,
    far: int,
) -> None:
    """Where `far` is not 0, years have four digits."""
    monkeypatch.setattr(sockets, "LOOK_SECONDS", 0.0)
    now = datetime.now(UTC)
    ends = last + far if last > 0 else last
    made = ca.issue_cert(
        "127.0.0.1", not_before=now + timedelta(days=first), not_after=now + timedelta(days=ends)
    )
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made.private_key_pem.write_to_path(key)
    made.cert_chain_pems[0].write_to_path(cert)
    certificate = Certificate(cert, key)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == bool(says)
    assert not says or (
        f"{cert} {says}" in warned[0]
        and str((now + timedelta(days=first if first > 0 else ends)).date()) in warned[0]
    )
    caplog.clear()
    os.utime(cert, ns=(1, 1))
    certificate.refresh()
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == warned, "read again"

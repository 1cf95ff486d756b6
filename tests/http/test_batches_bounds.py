"""What files and batches may take: on the disk, of a key's day, of the server's memory."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from ovserve.access.keys import entry_text
from tests.conftest import Server, until
from tests.http.test_batches import CHAT, A, client_of, counts, create, ended, jsonl, line, start

LINES = [line(f"n{i}", f"say {i}") for i in range(40)]


def test_batches_wait_while_the_disk_holds_all_that_it_may(tmp_path: Path) -> None:
    """Their 40 rows and 6 kB of input go beyond the bound; without the other file there is room again."""
    server = start(tmp_path, "--file_store_max_bytes", "40000")
    try:
        client = client_of(server)
        other = client.files.create(file=("other", b"x" * 25_000), purpose="batch")
        with pytest.raises(
            openai.InternalServerError, match="the store holds 25000 of 40000 bytes"
        ) as refused:
            client.files.create(file=("more", b"x" * 20_000), purpose="batch")
        assert refused.value.response.headers["x-should-retry"] == "false"
        batch = create(client, LINES)
        until(lambda: any("--file_store_max_bytes" in text for text in server.errors))
        assert counts(client, batch.id) == (40, 0, 0)
        client.files.delete(other.id)
        assert ended(client, batch.id).status == "completed"
        assert counts(client, batch.id) == (40, 40, 0)
    finally:
        server.stop()


def test_an_upload_holds_its_room_and_leaves_none_when_it_breaks_off(tmp_path: Path) -> None:
    server = start(tmp_path, "--file_store_max_bytes_per_key", "3000000", "--max_file_bytes", "2500000")
    files = tmp_path / "r.db.files"
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in"\r\n\r\n'
    try:
        client, place = client_of(server), urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port)) as upload:
            upload.sendall(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 2400000\r\n")
            upload.sendall(b"Content-Type: multipart/form-data; boundary=b\r\n\r\n" + head + b"x" * 2_000_000)
            until(lambda: sum(path.stat().st_size for path in files.glob("*")) > 1_000_000)
            with pytest.raises(openai.InternalServerError, match="this key holds 2400000 of 3000000 bytes"):
                client.files.create(file=("more", b"x" * 1_000_000), purpose="batch")
        until(lambda: not [*files.iterdir()])
        assert client.files.create(file=("exact", b"x" * 2_500_000), purpose="batch").bytes == 2_500_000
        client.files.delete(client.files.list().data[0].id)
        with pytest.raises(openai.APIStatusError, match="2500001 bytes, more than 2500000") as too_large:
            client.files.create(file=("one more", b"x" * 2_500_001), purpose="batch")
        assert too_large.value.status_code == 413
        assert not [*files.iterdir()]
    finally:
        server.stop()


def test_lines_count_for_the_day_of_their_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry_text("a", A) + "tokens_per_day = 100\nconcurrency = 1\n")
    server = start(tmp_path, "--api_keys_file", str(keys))
    try:
        client = client_of(server, key=A)
        batch = create(client, LINES)
        until(lambda: any("may have 100 tokens per day" in text for text in server.errors))
        body = LINES[0]["body"]
        live = httpx.post(server.url + CHAT, json=body, headers={"Authorization": f"Bearer {A}"})
        assert live.status_code == 429, live.text
        assert client.batches.cancel(batch.id).status == "cancelling"
        batch = ended(client, batch.id)
        assert batch.usage is not None
        assert batch.usage.total_tokens >= 100
        total, completed, failed = counts(client, batch.id)
        assert (total, failed) == (40, 0)
        assert 0 < completed < 40, "the rest waited"
    finally:
        server.stop()


@pytest.mark.long
def test_the_memory_has_no_copy_of_large_files(tmp_path: Path) -> None:
    """20 uploads of 10 MB at once, then 50,001 lines, of which one is too many."""
    server = start(tmp_path)
    try:
        client = client_of(server)
        create(client, [line("first", "starts the processes")])
        before = peak_bytes(server)
        with ThreadPoolExecutor(20) as threads:
            data = b"x" * 10_000_000
            uploads = [
                threads.submit(client.files.create, file=("f", data), purpose="batch") for _ in range(20)
            ]
            assert {upload.result().bytes for upload in uploads} == {10_000_000}
        rest = [line(f"n{i}", "x" * 300) for i in range(50_001)]
        file = client.files.create(file=("in.jsonl", jsonl(rest)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        batch = ended(client, batch.id, 110)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [error.code for error in batch.errors.data] == ["too_many_tasks"]
        assert peak_bytes(server) - before < 60_000_000, "200 MB and 25 MB were uploaded"
    finally:
        server.stop()


def peak_bytes(server: Server) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024

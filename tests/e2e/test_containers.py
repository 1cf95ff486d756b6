"""Servers in containers: little shared memory, a root that cannot be written, and what a kill leaves behind.

The containers are mount namespaces, so the tests need root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ovserve.engine.protocol.blobs import PREFIX
from tests.conftest import Server, script_graph, start_process

SHARED_MEMORY = Path("/dev/shm")
MEGABYTE = 1 << 20
SMALL_SHARED_MEMORY = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
READ_ONLY_ROOT = "mount -o remount,bind,ro /"
NAMESPACES = ("unshare", "--mount", "--propagation", "private")


def _isolates() -> bool:
    command = [*NAMESPACES, "sh", "-c", SMALL_SHARED_MEMORY]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


isolated = pytest.mark.skipif(not _isolates(), reason="mount namespaces need root")


@contextmanager
def serving(*flags: str, mounts: str = "") -> Iterator[tuple[Server, httpx.Client]]:
    prefix = (*NAMESPACES, "sh", "-c", f'{mounts} && exec "$@"', "sh") if mounts else ()
    server = start_process(*flags, "--response_store", "off", prefix=prefix)
    try:
        with httpx.Client(base_url=server.url, timeout=230) as http:
            yield server, http
    finally:
        server.stop()


def configuration(directory: Path, *entries: dict[str, object]) -> tuple[str, str]:
    file = directory / "config.json"
    file.write_text(json.dumps({"model_config_list": [{"config": entry} for entry in entries]}))
    return "--config_path", str(file)


def copied(http: httpx.Client, data: bytes, rows: int = 1) -> bytes:
    """Return what the model `passthrough` answers, by KServe's binary extension."""
    shape = [rows, len(data) // rows]
    tensor = {
        "name": "input",
        "shape": shape,
        "datatype": "UINT8",
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    answer = http.post(
        "/v2/models/copy/infer",
        content=head + data,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert answer.status_code == 200, answer.text[:500]
    return answer.content[int(answer.headers["Inference-Header-Content-Length"]) :]


def segments(name: str = "*") -> set[Path]:
    return set(SHARED_MEMORY.glob(f"{PREFIX}-{name}"))


@isolated
def test_bodies_larger_than_the_shared_memory_are_answered(tmp_path: Path, plain_models: Path) -> None:
    flags = configuration(tmp_path, {"name": "copy", "base_path": str(plain_models / "passthrough")})
    with serving(*flags, "--max_body_bytes", str(200 * MEGABYTE), mounts=SMALL_SHARED_MEMORY) as (
        server,
        http,
    ):
        for size in (1, 30, 8, 30, 100, 30):
            data = os.urandom(MEGABYTE) * size
            assert copied(http, data) == data
        said = [line for line in server.errors if "--shm-size" in line]
        assert said, "a full shared memory is reported"
        assert len(said) <= 2, "once by each side"


@isolated
def test_a_read_only_root_is_said_at_start_and_uploads_work(tmp_path: Path, plain_models: Path) -> None:
    script = script_graph(tmp_path / "chat", json.dumps({"replies": [{"text": "hi"}]}))
    flags = configuration(tmp_path, {"name": "chat", "base_path": str(script)})
    with serving(*flags, mounts=f"{SMALL_SHARED_MEMORY} && {READ_ONLY_ROOT}") as (server, http):
        assert any("temporary files go to /dev/shm" in line for line in server.errors)
        answer = http.post(
            "/v3/audio/transcriptions", data={"model": "chat"}, files={"file": ("a.wav", _wav(tmp_path))}
        )
        assert answer.status_code == 404, answer.text  # the graph has no such endpoint, and the file was read
    assert not any("Traceback" in line for line in server.errors)


def test_a_store_that_cannot_be_written_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    script = script_graph(tmp_path / "chat", json.dumps({"replies": [{"text": "hi"}]}))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RuntimeError) as raised:
        start_process("--model_path", str(script), "--response_store_path", str(file / "responses.db"))
    assert "--response_store_path" in str(raised.value)
    assert "Traceback" not in str(raised.value)


@isolated
def test_no_place_for_temporary_files_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    script = script_graph(tmp_path / "chat", json.dumps({"replies": [{"text": "hi"}]}))
    nowhere = "mount -t tmpfs -o size=64m,ro tmpfs /dev/shm"
    with (
        pytest.raises(RuntimeError, match="mount a writable /tmp, or name a directory in TMPDIR"),
        serving("--model_name", "m", "--model_path", str(script), mounts=f"{nowhere} && {READ_ONLY_ROOT}"),
    ):
        pass


def _wav(directory: Path) -> bytes:
    file = directory / "a.wav"
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(bytes(32000))
    return file.read_bytes()


def test_a_start_removes_what_a_killed_server_left_and_nothing_of_a_living_one(
    tmp_path: Path, plain_models: Path
) -> None:
    flags = configuration(tmp_path, {"name": "copy", "base_path": str(plain_models / "passthrough")})
    data = os.urandom(MEGABYTE)
    with serving(*flags) as (living, http):
        assert copied(http, data) == data
        its_own = segments(f"{living.process.pid}-*")
        with serving(*flags) as (killed, other):
            assert copied(other, data) == data
            left = segments(f"{killed.process.pid}-*")
            assert len(left) >= 2, "segments of both sides"
            killed.process.send_signal(signal.SIGKILL)
            killed.process.wait(60)
        assert left <= segments(), "nothing has removed them so far"
        stranger = SHARED_MEMORY / f"{PREFIX}-{living.process.pid}-0-0-0"  # of a living pid, without a lock
        stranger.touch()
        try:
            with serving(*flags) as (_, another):
                assert copied(another, data) == data
                assert not left & segments()
                assert its_own <= segments()
                assert stranger in segments()
        finally:
            stranger.unlink()
        assert copied(http, data * 2) == data * 2
    assert not segments(f"{living.process.pid}-*")


@isolated
def test_a_living_server_of_another_container_keeps_its_segments(tmp_path: Path, plain_models: Path) -> None:
    """Both see the same /dev/shm, and each counts its processes from 1."""
    flags = configuration(tmp_path, {"name": "copy", "base_path": str(plain_models / "passthrough")})
    data = os.urandom(MEGABYTE)
    before = segments("1-*")
    container = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    first = start_process(*flags, prefix=container)
    try:
        with httpx.Client(base_url=first.url, timeout=230) as http:
            assert copied(http, data) == data
            its_own = segments("1-*") - before  # its pid there
            assert its_own
            with serving(*flags) as (_, another):
                assert copied(another, data) == data
                assert its_own <= segments()
            assert copied(http, data * 2) == data * 2
    finally:
        first.stop(signal.SIGKILL)
    with serving(*flags):
        assert not its_own & segments()

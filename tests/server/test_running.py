"""The list of running servers that `ovserve run` reads; tests/cli/test_run.py has it with real servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ovserve.server.environment import listed, running_servers


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "ovserve"


def test_a_server_is_listed_while_it_runs() -> None:
    assert running_servers() == []
    with listed("http://127.0.0.1:9"):
        assert running_servers() == ["http://127.0.0.1:9"]
    assert running_servers() == []


def test_what_a_dead_process_left_is_removed(directory: Path) -> None:
    with listed("http://127.0.0.1:9"):
        (directory / str(2**22 + 1)).write_text("http://127.0.0.1:8")  # above pid_max
        (directory / "notes").write_text("not a process")
        assert running_servers() == ["http://127.0.0.1:9"]
        assert {file.name for file in directory.iterdir()} == {str(os.getpid()), "notes"}


def test_a_directory_that_others_can_write_is_not_read(directory: Path) -> None:
    with listed("http://127.0.0.1:9"):
        directory.chmod(0o777)
        assert running_servers() == []


def test_a_server_is_served_where_it_cannot_be_listed(directory: Path) -> None:
    directory.write_text("a file")
    with listed("http://127.0.0.1:9"):
        assert running_servers() == []


def test_a_private_socket_is_not_listed(directory: Path) -> None:
    with listed("unix:/run/s"):
        assert not directory.exists()

"""Local files: only under the directory of --allowed_local_media_path, whatever the path looks like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ovserve.errors import InvalidArgument
from ovserve.sandbox.images.loader import read_file
from ovserve.sandbox.images.policy import Policy

LIMIT = 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a picture, beside a secret."""
    root = tmp_path / "allowed"
    (root / "sub dir").mkdir(parents=True)
    (root / "cat.png").write_bytes(b"cat")
    (root / "sub dir" / "dog.png").write_bytes(b"dog")
    (root / "large.png").write_bytes(bytes(LIMIT + 1))
    (tmp_path / "secret").write_bytes(b"secret")
    return root


def read(path: str, root: Path | None) -> bytes:
    return read_file(path, Policy(directory=root), LIMIT, "x.url")


def test_files_in_the_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(f"{root}/cat.png", root) == b"cat"
    assert read(f"file://{root}/sub%20dir/dog.png", root) == b"dog"
    assert read(f"file://localhost{root}/cat.png", root) == b"cat"
    monkeypatch.chdir(root)
    assert read("cat.png", root) == b"cat"


def test_a_link_that_stays_inside(root: Path) -> None:
    (root / "link.png").symlink_to(root / "cat.png")
    assert read(f"{root}/link.png", root) == b"cat"


def test_none_are_allowed_by_default(root: Path) -> None:
    with pytest.raises(InvalidArgument, match="x.url: files are not allowed") as raised:
        read(f"{root}/cat.png", None)
    assert raised.value.param == "x.url"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{root}/../secret", r"must not contain '\.\.'"),
        ("file://{root}/%2e%2e/secret", r"must not contain '\.\.'"),
        ("{root}/../allowed/cat.png", r"must not contain '\.\.'"),
        ("{parent}/secret", "outside of the allowed directory"),
        ("{root}-2/cat.png", "outside of the allowed directory"),
        ("/etc/passwd", "outside of the allowed directory"),
        ("", "outside of the allowed directory"),
        ("{root}", "outside of the allowed directory"),
        ("{root}/nowhere.png", "cannot be read"),
        ("{root}/cat.png/x", "cannot be read"),
        ("{root}/sub dir", "not a regular file|cannot be read"),
        ("{root}/large.png", "larger than 100 bytes"),
        ("{root}/cat\0.png", "no such file"),
        ("file://elsewhere/cat.png", "must not name a host"),
    ],
)
def test_refusals(root: Path, path: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as raised:
        read(path.format(root=root, parent=root.parent), root)
    assert "secret" not in raised.value.message


def test_links_out_of_the_directory(root: Path) -> None:
    (root / "file.png").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent)
    (root / "loop.png").symlink_to(root / "loop.png")
    for name in ("file.png", "folder/secret", "loop.png"):
        with pytest.raises(InvalidArgument):
            read(f"{root}/{name}", root)


def test_a_link_made_after_the_check_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "swap.png"
    path.symlink_to(root.parent / "secret")
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: self)  # as the check saw it: a plain file
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read(str(path), root)


def test_a_pipe_does_not_hold_the_server_up(root: Path) -> None:
    os.mkfifo(root / "pipe.png")
    with pytest.raises(InvalidArgument, match="not a regular file"):
        read(f"{root}/pipe.png", root)

"""Keys: files that are refused and how, who is let in, and a file that changes under the running server."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from ovserve.access import ANYONE, Guard, load_keys, presented_key
from ovserve.access import keys as guard_module
from ovserve.access.keys import check_own_key, digest, entry_text, load_key, new_key
from ovserve.errors import InvalidArgument, LoadError, Unauthenticated

SECRET = "correct-horse-battery"


def file(path: Path, *entries: str) -> Path:
    path.write_text("\n".join(entries))
    return path


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return file(tmp_path / "keys.toml", entry_text("team-a", SECRET) + "concurrency = 2")


def test_without_keys_anyone_comes_in() -> None:
    guard = Guard()
    assert not guard.required
    assert guard.caller(None) is guard.caller("whatever") is ANYONE


def test_the_single_key() -> None:
    guard = Guard(SECRET)
    caller = guard.caller(SECRET)
    assert caller.name == ""
    assert caller.rights.admin
    for wrong, given in ((None, False), (SECRET + "x", True), (SECRET[:-1], True), ("", True), ("é", True)):
        with pytest.raises(Unauthenticated) as caught:
            guard.caller(wrong)
        assert caught.value.wrong is given
        assert SECRET not in str(caught.value)


def test_a_key_of_the_file_and_the_single_one_side_by_side(keys: Path) -> None:
    guard = Guard("another-key-of-mine", keys)
    caller = guard.caller(SECRET)
    assert (caller.name, caller.rights.concurrency, caller.rights.admin) == ("team-a", 2, False)
    assert guard.caller("another-key-of-mine").rights.admin


@pytest.mark.parametrize(
    ("expires", "dead"),
    [("2001-01-01T00:00:00Z", True), ("2001-01-01", None), ("2999-01-01T00:00:00", False)],
)
def test_a_key_expires(tmp_path: Path, expires: str, dead: bool | None) -> None:
    path = file(tmp_path / "keys.toml", entry_text("a", SECRET) + f"expires = {expires}")
    if dead is None:
        with pytest.raises(LoadError, match="expires"):
            Guard("", path)
    elif dead:
        with pytest.raises(Unauthenticated, match="expired"):
            Guard("", path).caller(SECRET)
    else:
        assert Guard("", path).caller(SECRET).name == "a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[key]]\nname = 'a'\n", "hash"),
        ("[[key]]\nname = 'a'\nhash = 'secret-in-clear-text'\n", "hash"),
        (entry_text("a", SECRET) + "modles = []", "modles"),
        (entry_text("a", SECRET) + "concurrency = 0", "concurrency"),
        (entry_text("a", SECRET) + "queue_timeout = 0", "queue_timeout"),
        (entry_text("a", SECRET) + "max_queue = -1", "max_queue"),
        (entry_text("a", SECRET) + "weight = 0", "weight"),
        (entry_text("a", SECRET) + entry_text("a", "x"), "two keys are called 'a'"),
        (entry_text("a", SECRET) + entry_text("b", SECRET), "the hash of 'b' is also used by another key"),
        ("[[key]]\nname 1\n", "line 2"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path / "keys.toml", text)
    with pytest.raises(LoadError, match=says) as caught:
        load_keys(path)
    assert str(path) in str(caught.value)
    assert "secret-in-clear" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "é"])
def test_a_name_that_the_file_may_not_have(name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        entry_text(name, SECRET)


def test_what_is_printed_can_be_loaded(tmp_path: Path) -> None:
    made = new_key()
    check_own_key(made)
    path = file(tmp_path / "keys.toml", entry_text('we"ird\\name', made))
    assert load_keys(path)[digest(made)].caller.name == 'we"ird\\name'


@pytest.mark.parametrize("key", ["short", "with a blank in it", "ümlaut-ümlaut-ümlaut"])
def test_keys_of_ones_own(key: str) -> None:
    with pytest.raises(InvalidArgument):
        check_own_key(key)


def test_the_file_of_the_single_key(tmp_path: Path) -> None:
    assert load_key(file(tmp_path / "k", "the-key  \t", "more")) == "the-key"
    for content in ("", "\nkey"):
        with pytest.raises(LoadError, match="first line is empty"):
            load_key(file(tmp_path / "k", content))
    with pytest.raises(LoadError, match="No such file"):
        load_key(tmp_path / "none")


def test_a_changed_file_counts(
    keys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard_module, "LOOK_SECONDS", 0.0)
    guard = Guard("", keys)
    before = guard.caller(SECRET)

    replacement = file(keys.with_suffix(".new"), entry_text("team-a", SECRET), entry_text("b", "other"))
    os.replace(replacement, keys)
    assert guard.caller("other").name == "b"
    assert guard.caller(SECRET) is before, "its use is remembered"
    assert before.rights.concurrency is None

    file(keys, "not = toml = at all")
    with caplog.at_level(logging.ERROR):
        assert guard.caller(SECRET) is before
        assert guard.caller("other").name == "b"
    assert [r.getMessage() for r in caplog.records if "keys are unchanged" in r.getMessage()]
    assert len(caplog.records) == 1, "told once"

    keys.unlink()
    assert guard.caller(SECRET) is before

    file(keys, entry_text("b", "other"))
    with pytest.raises(Unauthenticated):
        guard.caller(SECRET)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer   k "}, "k"),
        ({"api-key": "k"}, "k"),
        ({"x-api-key": "k"}, "k"),
        ({"authorization": "Basic abc", "x-api-key": "k"}, "k"),
        ({"authorization": "Bearer one", "api-key": "two"}, "one"),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "k"}, None),
        ({}, None),
    ],
)
def test_where_a_key_is_looked_for(headers: dict[str, str], key: str | None) -> None:
    assert presented_key(headers) == key

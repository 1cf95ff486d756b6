"""How far something is, as lines and as JSON; and what a terminal is not sent."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest

from ovserve.cli import progress as shown
from ovserve.cli.chat.terminal import visible
from ovserve.cli.parser import table
from ovserve.pull.progress import JsonLines, progress
from tests.conftest import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_have_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.05)
    out, done = io.StringIO(), [10_000_000]
    with progress(shown.Shown(out), "fetching x", 100_000_000, lambda: done[0]):
        time.sleep(0.06)
        done[0] = 60_000_000
        until(lambda: ": 60 of 100 MB, " in out.getvalue())
        done[0] = 100_000_000
    *lines, last = out.getvalue().splitlines()
    assert any(line.startswith("fetching x: 60 of 100 MB, ") and line.endswith(" s left") for line in lines)
    assert last.startswith("fetching x: 100 of 100 MB, ")
    assert "left" not in last


def test_a_terminal_gets_a_bar() -> None:
    out = Terminal()
    with progress(shown.Shown(out), "fetching x", 100, lambda: 50):
        pass
    assert "fetching x" in out.getvalue()
    assert "50/100 bytes" in out.getvalue()


def test_a_program_gets_json() -> None:
    out = io.StringIO()
    say = JsonLines(out)
    say("begin")
    with progress(say, "fetching x", 10, lambda: 12):
        pass
    with progress(say, "converting", 0):
        pass
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert first == {"status": "begin"}
    assert second == {"status": "fetching x", "total": 10, "completed": 10}
    assert third == {"status": "converting"}


def test_what_only_prints_shows_nothing() -> None:
    said: list[str] = []
    with progress(said.append, "fetching x", 10, lambda: 5):
        pass
    assert said == []


def test_tables_have_colours_on_a_terminal_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    rows = [["a", "AVAILABLE"]]
    assert "\x1b" not in table(["name", "state"], rows)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert "\x1b[32mAVAILABLE\x1b[0m" in table(["name", "state"], rows)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in table(["name", "state"], rows)


def test_a_model_cannot_write_to_the_terminal() -> None:
    assert visible("a\x1b]52;c;ZXZpbA==\x07b\tc\nd\x9b2J") == "a]52;c;ZXZpbA==b\tc\nd2J"

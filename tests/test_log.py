"""Lines of the log that are written together."""

from __future__ import annotations

import asyncio
import logging
import sys
from logging.handlers import WatchedFileHandler
from pathlib import Path

import pytest

from ovserve.log import ACCESS, MAX_CHARACTERS, JsonFormatter, TextFormatter, _Lines


def test_a_line_that_is_not_unicode_does_not_lose_its_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    handler = _Lines(WatchedFileHandler(file, encoding="utf-8", errors="backslashreplace"))

    async def three() -> None:
        for text in ("before", "half a pair: \ud800", "after"):
            handler.handle(logging.LogRecord(ACCESS, logging.INFO, "", 0, text, None, None))
        assert not file.read_text()
        await asyncio.sleep(0.1)

    asyncio.run(three())
    handler.close()
    assert file.read_text().splitlines() == ["before", "half a pair: \\ud800", "after"]


def test_the_text_of_a_client_begins_no_line() -> None:
    hostile = "m\n2026-11-30 01:00:00,000 ERROR   server [-] forged\r\x1b[2J\u2028"
    record = logging.LogRecord("ovserve.x", logging.INFO, "", 0, "no model %s", (hostile,), None)
    assert (
        TextFormatter()
        .format(record)
        .endswith("no model m\\n2026-11-30 01:00:00,000 ERROR   server [-] forged\\r\\x1b[2J\\u2028")
    )
    try:
        raise ValueError(hostile)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *rest = TextFormatter().format(record).splitlines()
    assert "no model m\\n2026" in first
    assert "forged" in rest[-2]
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_what_a_line_carries_is_bounded(formatter: logging.Formatter) -> None:
    """A megabyte of control characters took half a second, and four megabytes of the file."""
    text = "first " + "\x00" * 1_000_000 + " last"
    record = logging.LogRecord("ovserve.x", logging.INFO, "", 0, "got %s", (text,), None)
    shown = [formatter.format(record)]
    try:
        raise ValueError(text)
    except ValueError:
        record.exc_info = sys.exc_info()
    shown.append(formatter.format(record))
    for line in shown:
        assert "got first " in line
        assert " characters left out] " in line
        assert " last" in line
        assert len(line) < 2 * 6 * MAX_CHARACTERS + 1000, "each character is escaped as six at most"

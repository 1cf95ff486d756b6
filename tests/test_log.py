"""Lines of the log that are written together."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import sys
from pathlib import Path

import pytest

from ovserve.log import ACCESS, MAX_CHARACTERS, JsonFormatter, LogFile, TextFormatter, _Lines


def test_a_line_that_is_not_unicode_does_not_lose_its_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    log = LogFile(str(file))
    handler = _Lines(log)

    async def three() -> None:
        for text in ("before", "half a pair: \ud800", "after"):
            handler.handle(logging.LogRecord(ACCESS, logging.INFO, "", 0, text, None, None))
        assert not file.read_text()
        await asyncio.sleep(0.1)

    asyncio.run(three())
    log.close()
    assert file.read_text().splitlines() == ["before", "half a pair: \\ud800", "after"]


def test_a_file_that_cannot_be_written_is_reported_once_and_taken_up_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk printed a traceback per line, and kept a removed file; a missing folder ended the log."""
    (folder := tmp_path / "logs").mkdir()
    file = folder / "server.log"
    log = LogFile(str(file))
    log.write(["a\n"])
    shutil.rmtree(folder)
    log.write(["lost\n"])
    log.write(["lost\n", "lost\n"])
    folder.mkdir()
    file.symlink_to("/dev/full")
    log.write(["lost\n"])
    held = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    assert not [one for one in held if one.startswith(str(tmp_path))], "a removed file keeps its space"
    file.unlink()
    log.write(["b\n"])
    log.close()
    assert file.read_text() == "b\n"
    assert [r.levelname for r in caplog.records] == ["ERROR", "WARNING"]
    assert "cannot be written, and its lines are lost: No such file or directory" in caplog.messages[0]
    assert caplog.messages[1] == f"{file} is written again; 4 lines were lost"


def test_a_line_that_was_cut_ends_before_the_next(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))  # Python ignores SIGXFSZ
    try:
        log.write(["whole line\n"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write(["next\n"])
    log.close()
    assert (tmp_path / "log").read_text() == "whol\nnext\n"


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

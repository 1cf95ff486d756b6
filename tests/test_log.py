"""Lines of the log that are written together."""

from __future__ import annotations

import asyncio
import logging
from logging.handlers import WatchedFileHandler
from pathlib import Path

from ovserve.log import ACCESS, _Lines


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

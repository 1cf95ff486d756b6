"""Reads from the headers of a request how long its client waits for an answer.

`Prefer: wait=10` is a standard, and the clients of OpenAI and Anthropic send their read timeout.

Sources: https://www.rfc-editor.org/rfc/rfc7240 and https://github.com/openai/openai-python, read 2026-11-23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFER, WAIT = "Prefer", re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
SECONDS = ("x-stainless-read-timeout", "x-stainless-timeout")
NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")


def patience(headers: Mapping[str, str]) -> float | None:
    """Return the seconds; None where no header says so in a form that is known."""
    given = [headers[name].strip() for name in SECONDS if name in headers]
    found = [float(text) for text in given if NUMBER.fullmatch(text)]
    if PREFER in headers:
        found += [float(found[1]) for found in WAIT.finditer(headers[PREFER])]
    return min(found, default=None)

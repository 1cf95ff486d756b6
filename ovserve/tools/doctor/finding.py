"""A finding of the doctor, and its text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

# ok: as it should be; slow: works, and could be faster; warning: may fail later; problem: a server fails.
Status = Literal["ok", "slow", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result. `advice` says why it matters and what to do; "" where nothing is to do."""

    check: str
    status: Status
    found: str
    advice: str = ""


class Report(msgspec.Struct, frozen=True):
    """`ok` is false if one of the checks found a problem."""

    ok: bool
    checks: Sequence[Finding]


def report(findings: Sequence[Finding]) -> Report:
    return Report(all(finding.status != "problem" for finding in findings), findings)


def text(made: Report) -> str:
    """Return a line per finding, and a second one for its advice."""
    width = max(len(finding.check) for finding in made.checks)
    lines = []
    for finding in made.checks:
        lines.append(f"{finding.status:<8} {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    return "\n".join(lines)

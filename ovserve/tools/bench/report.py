"""The results as a text for people, and as a document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ovserve.tools.bench.clients import Sample

PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def summary(answers: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """Summarise. Times in milliseconds; percentiles are of the answers that did not fail, null if there are
    none."""
    good = [answer for answer in answers if not answer.error]
    tokens = sum(answer.tokens for answer in good)
    return {
        "seconds": round(seconds, 3),
        "answers": len(good),
        "failed": len(answers) - len(good),
        "errors": dict(Counter(answer.error for answer in answers if answer.error)),
        "answers_per_second": round(len(good) / seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "tokens": tokens,
        "first_token": percentiles([answer.first for answer in good]),
        "between_tokens": percentiles([gap for answer in good for gap in answer.gaps]),
        "whole_answer": percentiles([answer.total for answer in good]),
    }


def document(answers: Sequence[Sample], seconds: float, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the summary, the parameters of the run (`asked`), and each request."""
    requests = [
        {
            "began": round(answer.began, 4),
            "first_token": _ms(answer.first),
            "whole_answer": _ms(answer.total),
            "prompt_tokens": answer.prompt_tokens,
            "tokens": answer.tokens,
            "error": answer.error or None,
        }
        for answer in answers
    ]
    return {"asked": asked, **summary(answers, seconds), "requests": requests}


def text(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return lines of text, and the rows of the table of times."""
    lines = [
        f"{found['answers']} answers, {found['failed']} failed, in {found['seconds']:.2f} s",
        f"{found['answers_per_second']:.2f} answers/s, {found['tokens_per_second']:.1f} tokens/s",
        *(
            f"failed{f' {count} times' if count > 1 else ''}: {error}"
            for error, count in sorted(found["errors"].items())
        ),
    ]
    if not found["answers"]:
        return lines, []
    rows = []
    for name in ("first_token", "between_tokens", "whole_answer"):
        times = found[name]
        shown = ["-" if times is None else f"{times[part]:.1f}" for part in PARTS]
        rows.append([name.replace("_", " "), *shown])
    return lines, rows


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Convert seconds to milliseconds."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {name: _ms(ordered[min(len(ordered) - 1, int(len(ordered) * p))]) for name, p in PARTS.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

"""The rounds of a comparison as a markdown table, and pass or fail against what is expected.

Used by `compare.py`. Ratios are taken pair by pair (neighbours in time, so the machine was the same) and the
median of them is reported with the extremes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks import starts
from benchmarks.measure import Round

Pair = tuple[Round, Round]  # bare, server

MIN_SPEED = {1: 0.95, 8: 0.97, 32: 0.97, 64: 0.97}
MAX_FIRST_TOKEN_MS = 5.0
MAX_GAP_P99 = 1.10
MAX_RSS_MB = 90.0


@dataclass
class Memory:
    """Memory of the server's process at the end, in MB: now and at most."""

    rss: float = 0.0
    peak: float = 0.0


HEAD = ["| streams | measure | bare | server | server against bare | min..max |", "|--:|---|--:|--:|--:|--:|"]


def table(pairs: dict[int, list[Pair]], began: starts.Starts, memory: Memory) -> list[str]:
    rows = [*HEAD]
    for streams, of in pairs.items():
        rows += [
            _ratio(streams, "tokens/s", of, lambda r: r.tokens_per_second, "{:.1f}"),
            _difference(streams, "first token, ms", of, lambda r: r.first_token * 1e3),
            _least(streams, "first token, least, ms", of, lambda r: r.first_token * 1e3),
            _ratio(streams, "gap to the second token, ms", of, lambda r: r.second_token * 1e3, "{:.2f}"),
            _ratio(streams, "gap p50, ms", of, lambda r: r.gap_p50 * 1e3, "{:.2f}"),
            _ratio(streams, "gap p99, ms", of, lambda r: r.gap_p99 * 1e3, "{:.2f}"),
            _ratio(streams, "engine CPU, us/token", of, lambda r: r.engine_cpu, "{:.0f}"),
            _server(streams, "server CPU, us/token", of, lambda r: r.server_cpu, "{:.0f}"),
            _server(streams, "server wake-ups/token", of, lambda r: r.server_sleeps, "{:.2f}"),
            _server(streams, "client CPU, us/token", of, lambda r: r.client_cpu, "{:.0f}"),
            _server(streams, "content events/token", of, lambda r: r.events_per_token, "{:.3f}"),
        ]
    rows += [
        *starts.rows(began),
        f"| | server RSS, MB (peak) | | {memory.rss:.1f} ({memory.peak:.1f}) | | |",
    ]
    return rows


def least_rows(pairs: dict[int, list[Pair]]) -> list[str]:
    rows = []
    for streams, of in pairs.items():
        rows += [
            _ratio(streams, "tokens/s, least server", of, lambda r: r.tokens_per_second, "{:.1f}"),
            _ratio(streams, "gap p50, ms, least server", of, lambda r: r.gap_p50 * 1e3, "{:.2f}"),
            _server(streams, "CPU of the least server, us/token", of, lambda r: r.server_cpu, "{:.0f}"),
        ]
    return rows


def noise(pairs: dict[int, list[Pair]]) -> str:
    rounds = [r for of in pairs.values() for pair in of for r in pair]
    others = [r.others_cores for r in rounds]
    idle = max(r.idle_engine_cores for r in rounds)
    spreads = []
    for streams, of in pairs.items():
        speeds = [bare.tokens_per_second for bare, _ in of]
        spreads.append(f"{min(speeds):.0f}..{max(speeds):.0f} at {streams}")
    return (
        f"Noise: the bare engine alone gave {', '.join(spreads)} tokens/s; other processes kept "
        f"{median(others):.2f} cores busy (median of rounds; most {max(others):.2f}); the engine whose turn it "
        f"was not used at most {idle:.4f} cores."
    )


def verdicts(pairs: dict[int, list[Pair]], began: starts.Starts, memory: Memory) -> list[tuple[bool, str]]:
    found = []
    for streams, of in pairs.items():
        if streams in MIN_SPEED:
            ratio = median(s.tokens_per_second / b.tokens_per_second for b, s in of)
            found.append(
                (
                    ratio >= MIN_SPEED[streams],
                    f"tokens/s at {streams}: {ratio:.3f} of bare, expected >= {MIN_SPEED[streams]:.2f}",
                )
            )
        late = median(s.first_token - b.first_token for b, s in of) * 1e3
        text = f"first token at {streams}: {late:+.1f} ms, expected <= +{MAX_FIRST_TOKEN_MS:.0f} ms"
        found.append((late <= MAX_FIRST_TOKEN_MS, text))
        gap = median(s.gap_p99 / b.gap_p99 for b, s in of)
        text = f"gap p99 at {streams}: {gap:.3f} of bare, expected <= {MAX_GAP_P99:.2f}"
        found.append((gap <= MAX_GAP_P99, text))
    found += starts.verdicts(began)
    found.append(
        (memory.rss < MAX_RSS_MB, f"server RSS: {memory.rss:.1f} MB, expected < {MAX_RSS_MB:.0f} MB")
    )
    return found


def _ratio(streams: int, name: str, of: list[Pair], value: Callable[[Round], float], form: str) -> str:
    ratios = [value(s) / value(b) for b, s in of]
    bare, server = median(value(b) for b, _ in of), median(value(s) for _, s in of)
    return (
        f"| {streams} | {name} | {form.format(bare)} | {form.format(server)} "
        f"| {median(ratios):.3f} | {min(ratios):.3f}..{max(ratios):.3f} |"
    )


def _difference(streams: int, name: str, of: list[Pair], value: Callable[[Round], float]) -> str:
    more = [value(s) - value(b) for b, s in of]
    bare, server = median(value(b) for b, _ in of), median(value(s) for _, s in of)
    return (
        f"| {streams} | {name} | {bare:.1f} | {server:.1f} "
        f"| {median(more):+.1f} | {min(more):+.1f}..{max(more):+.1f} |"
    )


def _least(streams: int, name: str, of: list[Pair], value: Callable[[Round], float]) -> str:
    """Return the best of the rounds of each side, because disturbances only add."""
    bare, server = min(value(b) for b, _ in of), min(value(s) for _, s in of)
    return f"| {streams} | {name} | {bare:.1f} | {server:.1f} | {server - bare:+.1f} | |"


def _server(streams: int, name: str, of: list[Pair], value: Callable[[Round], float], form: str) -> str:
    values = [value(s) for _, s in of]
    low, high = form.format(min(values)), form.format(max(values))
    return f"| {streams} | {name} | | {form.format(median(values))} | | {low}..{high} |"

"""The results for people: rows of a table, a plot in text, and the comments of the new graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ovserve.tools.tuning.graph_file import label
from ovserve.tools.tuning.search import Comparison, Trial, TuneResult

HEADER = ("tried", "against", "speed", "by streams", "min..max", "pairs", "outcome")
PLOT_CHARACTERS = 48  # characters of the plot


def rows(result: TuneResult) -> list[list[str]]:
    """Return one row per trial, in order, under HEADER; without those of `untried`."""
    table = [["the graph as it is", "itself", *_figures(result.control), "noise"]]
    for trial in (t for t in result.trials if t.outcome != "no time"):
        table.append([label(trial.choice), label(trial.baseline), *_figures(trial.match), outcome(trial)])
    if result.final is not None:
        verdict = label(result.options) if result.options else "not better after all"
        table.append(["all taken together", "the graph as it is", *_figures(result.final), verdict])
    return table


def outcome(trial: Trial) -> str:
    verdict = {
        "failed": f"failed: {' '.join(trial.message.split())}",
        "other text": f"not taken: {trial.difference}",
    }.get(trial.outcome, trial.outcome)
    return f"{verdict}; {trial.difference}" if trial.outcome == "taken" and trial.difference else verdict


def untried(result: TuneResult) -> list[str]:
    """Return the names of choices that were skipped for lack of time."""
    return [label(trial.choice) for trial in result.trials if trial.outcome == "no time"]


def bars(result: TuneResult) -> list[tuple[str, list[float]]]:
    """Return the content of a plot: each name with the ratios of its pairs."""
    control = [("the graph against itself", result.control.ratios)] if result.control.pairs else []
    trials = [(label(t.choice), t.match.ratios) for t in result.trials if t.match.pairs]
    final = [("all taken together", result.final.ratios)] if result.final is not None else []
    return [*control, *trials, *final]


def plot(result: TuneResult) -> str:
    """Return lines with `-` from the least ratio to the most, `o` at the median, `:` at 1."""
    rows_of_plot = bars(result)
    every = [one for _, ratios in rows_of_plot for one in ratios]
    low, high = min([0.95, *every]), max([1.05, *every])
    wide = max((len(name) for name, _ in rows_of_plot), default=0)

    def at(value: float) -> int:
        return round((value - low) / (high - low) * (PLOT_CHARACTERS - 1))

    lines = []
    for name, ratios in rows_of_plot:
        cells = [" "] * PLOT_CHARACTERS
        cells[at(1.0)] = ":"
        for i in range(at(min(ratios)), at(max(ratios)) + 1):
            cells[i] = "-"
        cells[at(median(ratios))] = "o"
        lines.append(f"{name.ljust(wide)}  {''.join(cells)}  {median(ratios):.2f}")
    scale = f"{low:.2f}".ljust(PLOT_CHARACTERS - 4) + f"{high:.2f}"
    return "\n".join([*lines, f"{' ' * wide}  {scale}"])


def by_streams(match: Comparison) -> Iterator[str]:
    """Yield the result for each number of streams: a choice may win at one and lose at another."""
    for c in match.pairs[0][0]:
        was = [baseline[c].tokens_per_second for baseline, _ in match.pairs]
        now = [candidate[c].tokens_per_second for _, candidate in match.pairs]
        waited = median(baseline[c].first_token for baseline, _ in match.pairs) * 1e3
        waits = median(candidate[c].first_token for _, candidate in match.pairs) * 1e3
        yield (
            f"{c} stream{'' if c == 1 else 's'}: {match.at(c):.2f} times the tokens/s ({median(was):.1f} "
            f"before, {median(now):.1f} now), first token after {waits:.0f} ms ({waited:.0f} before)"
        )


def texts(result: TuneResult) -> str:
    parted = result.difference
    text = "greedy answers are the same" if parted is None else f"greedy answers: {parted}"
    if not result.deterministic:
        text += "; but the graph as it was did not repeat its own answers either"
    return text


def evidence(result: TuneResult, heading: Sequence[str]) -> list[str]:
    """Return the comments above the new graph."""
    if result.final is None:
        return list(heading)
    return [
        *heading,
        "Ratios of tokens per second of pairs of rounds: median (least..most, pairs; streams: their median).",
        f"The graph as it was against itself: {_short(result.control)};",
        "no gain within that noise was taken.",
        "",
        *(
            f"  {label(t.choice)}: {_short(t.match)}, {outcome(t)}"
            for t in result.trials
            if t.outcome != "no time"
        ),
        *(f"  {name}: not tried, the budget was used up" for name in untried(result)),
        "",
        f"{label(result.options)} against the graph as it was: {_short(result.final)}",
        *(f"  at {line}" for line in by_streams(result.final)),
        f"  {texts(result)}",
    ]


def _figures(match: Comparison) -> list[str]:
    if not match.pairs:
        return ["-", "-", "-", "0"]
    ratios = match.ratios
    streams = " ".join(f"{c}: {match.at(c):.2f}" for c in match.pairs[0][0])
    return [f"{median(ratios):.2f}", streams, f"{min(ratios):.2f}..{max(ratios):.2f}", str(len(ratios))]


def _short(match: Comparison) -> str:
    speed, streams, span, pairs = _figures(match)
    return f"{speed} ({span}, {pairs}; {streams})" if match.pairs else "not measured"

"""A simulation of 8, 64 and 512 replicas behind Ray Serve, with service times measured on this project.

    python -m benchmarks.ray_simulation [--plot docs/images/ray-simulation.svg]

Conversations arrive at random and take turns; each turn's prompt is all of the conversation so far. A replica
computes `slots` requests at a time and keeps the prefixes of the conversations that it saw last. What is
simulated is queueing and cache hits under a routing rule; a second computation shows how many cores
the proxies need. Every run has the same seed.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path

SEED = 7
RULES = ("session", "random")


@dataclass(frozen=True)
class Costs:
    """Measured on AMD EPYC machines of two cores: `prefill` in tokens per second (128 in 52 ms) and `token` in
    seconds with 8 streams, of the default model (docs/performance.md). The proxies' costs are those that
    `python -m benchmarks.ray_serve` printed; they scale with tokens. Serve's controller is not simulated."""

    prefill: float = 2450.0
    token: float = 0.026
    slots: int = 8
    cached: int = 48  # conversations of 1,000 tokens in 1 GB of KV cache
    python_proxy: float = 502e-6  # CPU seconds per token
    haproxy: float = 39e-6


@dataclass(frozen=True)
class Result:
    hits: float
    first: float  # p50 of seconds to the first token
    late: float  # p99
    tokens: float  # per second, of all replicas


@dataclass
class Replica:
    busy: int = 0
    waiting: deque[tuple[float, int, int]] | None = None
    known: OrderedDict[int, int] | None = None


def simulate(replicas: int, load: float, rule: str, costs: Costs, requests: int = 0) -> Result:
    """Return what happens at a `load`: the part of all slots that would be busy without a cache."""
    rng = random.Random(SEED)
    turns, question, answer = 6, 120, 40
    prompts = [question * (t + 1) + answer * t for t in range(turns)]
    whole = sum(p / costs.prefill + answer * costs.token for p in prompts) / turns
    rate = load * replicas * costs.slots / whole / turns  # conversations per second
    count = (requests or 100 * replicas) // turns
    pool = [Replica(0, deque(), OrderedDict()) for _ in range(replicas)]
    events: list[tuple[float, int, str, int, int]] = []  # time, order, what, conversation or replica, turn
    order = 0
    now = 0.0
    for conversation in range(count):
        now += rng.expovariate(rate)
        events.append((now, (order := order + 1), "ask", conversation, 0))
    heapq.heapify(events)
    firsts: list[float] = []
    found = asked = 0

    def start(which: int, at: float, arrived: float, conversation: int, turn: int) -> None:
        nonlocal order, found, asked
        replica = pool[which]
        assert replica.known is not None
        have = min(replica.known.get(conversation, 0), prompts[turn])
        found, asked = found + have, asked + prompts[turn]
        prefill = (prompts[turn] - have) / costs.prefill
        firsts.append(at + prefill - arrived)
        replica.busy += 1
        replica.known[conversation] = prompts[turn]
        replica.known.move_to_end(conversation)
        if len(replica.known) > costs.cached:
            replica.known.popitem(last=False)
        done = at + prefill + answer * costs.token
        heapq.heappush(events, (done, (order := order + 1), "done", which, 0))
        if turn + 1 < turns:
            pause = rng.expovariate(1 / 5.0)
            heapq.heappush(events, (done + pause, (order := order + 1), "ask", conversation, turn + 1))

    while events:
        at, _, what, number, turn = heapq.heappop(events)
        if what == "ask":
            which = _route(pool, number, rule, rng, costs)
            waiting = pool[which].waiting
            assert waiting is not None
            if pool[which].busy < costs.slots:
                start(which, at, at, number, turn)
            else:
                waiting.append((at, number, turn))
        else:
            pool[number].busy -= 1
            waiting = pool[number].waiting
            if waiting:
                start(number, at, *waiting.popleft())
        now = at
    firsts.sort()
    tokens = len(firsts) * answer / now
    return Result(found / asked, firsts[len(firsts) // 2], firsts[int(0.99 * (len(firsts) - 1))], tokens)


def _route(pool: list[Replica], conversation: int, rule: str, rng: random.Random, costs: Costs) -> int:
    """Return the owner of a session, or one of its two successors if that is full; or the less busy of two."""
    if rule == "session":
        owners = [random.Random(conversation * 31 + turn).randrange(len(pool)) for turn in range(3)]
        return next((o for o in owners if pool[o].busy < costs.slots), owners[0])
    pair = rng.randrange(len(pool)), rng.randrange(len(pool))
    return min(pair, key=lambda i: pool[i].busy + len(pool[i].waiting or ()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    costs = Costs()
    loads = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
    table: dict[tuple[int, str], list[Result]] = {}
    print("| replicas | rule | cached | first token p50, p99 s | tokens/s | Python proxies, HAProxies |")
    print("|---|---|---|---|---|---|")
    for replicas in (8, 64, 512):
        for rule in RULES:
            table[replicas, rule] = rows = [simulate(replicas, load, rule, costs) for load in loads]
            at = rows[loads.index(0.8)]
            proxies = f"{at.tokens * costs.python_proxy:.1f}, {at.tokens * costs.haproxy:.2f}"
            print(
                f"| {replicas} | {rule} | {at.hits:.0%} | {at.first:.2f}, {at.late:.2f} | {at.tokens:.0f} | "
                f"{proxies} cores |"
            )
    if arguments.plot:
        plot(arguments.plot, loads, table)


def plot(path: Path, loads: tuple[float, ...], table: dict[tuple[int, str], list[Result]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "ovserve"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    for (replicas, rule), rows in table.items():
        style = "-" if rule == "session" else "--"
        colour = {8: "C0", 64: "C1", 512: "C2"}[replicas]
        label = f"{replicas} replicas, {rule}"
        left.plot(loads, [row.late for row in rows], style, color=colour, label=label)
        right.plot(loads, [100 * row.hits for row in rows], style, color=colour, label=label)
    left.set(xlabel="load", ylabel="seconds to the first token, p99", yscale="log")
    right.set(xlabel="load", ylabel="prompt tokens found in a cache, %", ylim=(0, 100))
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()

"""The command behind `make soak`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import httpx

from benchmarks.processes import exit_on_sigterm
from benchmarks.soak.record import Sample, record
from benchmarks.soak.report import picture, slopes, text
from benchmarks.soak.site import Site
from benchmarks.soak.traffic import Traffic

SAMPLES = 720  # about so many, at least a second apart
MOST_WRONG = 10  # shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--plot", type=Path, default=Path("soak.png"), help="where the PNG goes")
    arguments = parser.parse_args()
    exit_on_sigterm()
    traffic, samples = asyncio.run(_soak(arguments.minutes * 60))
    found = slopes(samples)
    print(f"{arguments.minutes:g} minutes; answered: {_counts(traffic)}; wrong: {len(traffic.wrong)}")
    print(f"{len(traffic.truths)} answers of the model were known before, and the version of every script")
    print(text(found))
    for line in traffic.wrong[:MOST_WRONG]:
        print(f"wrong: {line}")
    picture(found, arguments.plot)
    print(f"plot: {arguments.plot}")
    return 0 if not traffic.wrong and all(slope.fine for slope in found) else 1


def _counts(traffic: Traffic) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(traffic.done.items()))


async def _soak(seconds: float) -> tuple[Traffic, list[Sample]]:
    site = Site()
    with site as server:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
            traffic = Traffic(site, http, time.monotonic() + seconds)
            await traffic.prepare()
            running = asyncio.create_task(traffic.run())
            try:
                samples = await record(server, traffic, max(1.0, seconds / SAMPLES))
                await running
            finally:
                running.cancel()
                if server.process.poll() is not None:
                    print("".join(server.errors[-20:]), file=sys.stderr)
    return traffic, samples


if __name__ == "__main__":
    sys.exit(main())

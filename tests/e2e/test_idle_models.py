"""Every kind of engine in a server that holds a few of twelve graphs, under Zipf traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import zipf

SECONDS = 10


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_nothing_is_lost_or_starved(tmp_path: Path, short_graph: Path) -> None:
    found = zipf.graphs(tmp_path, short_graph)
    server = zipf.serve(tmp_path, found, 3)
    try:
        counts, samples = await zipf.run(server, found, SECONDS)
        loads = zipf.loads(server)
    finally:
        server.stop()
    assert not zipf.faults(counts, samples[-1:])  # `make soak-idle` judges memory
    assert all(count.answered for count in counts.values())
    assert sum(map(loads, found)) >= len(found) - 3

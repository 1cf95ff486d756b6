"""The graphs of `make soak`, which CI runs last: they are made from a shipped one, and follow its changes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.soak.site import CHAT, RERANK, SCRIPT, Site
from tests.e2e.test_process import run


def test_they_would_be_served(model: Path) -> None:
    with closing(Site()) as site:
        graphs = {CHAT, SCRIPT, RERANK, *site.random_lengths}
        checked = run("check", str(site.graphs))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("would be served") == len(graphs)
    assert all(f"{graph}: would be served" in checked.stdout for graph in graphs)

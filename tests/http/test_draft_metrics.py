"""What was drafted and accepted, in usage and in the metrics, by a real engine in the server."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from tests.conftest import ROOT, start_server
from tests.engine import tiny
from tests.http.test_cached_tokens import family


def test_usage_and_metrics_tell_the_same(tmp_path: Path) -> None:
    tiny.write(tmp_path / "model.gguf", tiny.table())
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    own = """models_path: "model.gguf"\n      plugin_config: '{"prompt_lookup": true}'"""
    (tmp_path / "graph.pbtxt").write_text(re.sub(r'models_path: "[^"]*"', own, text))
    server = start_server(tmp_path)
    try:
        body = {"model": "smollm2", "prompt": tiny.ENDLESS, "max_tokens": 24, "temperature": 0}
        answer = httpx.post(f"{server.v3}/completions", json=body | {"ignore_eos": True}, timeout=230)
        usage = answer.json()["usage"]
        metrics = httpx.get(f"{server.url}/metrics").text
    finally:
        server.stop()
    told = usage["completion_tokens_details"]
    accepted, rejected = told["accepted_prediction_tokens"], told["rejected_prediction_tokens"]
    assert accepted > 0
    for drafted in ("ovserve_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"):
        assert family(metrics, drafted) == accepted + rejected
    for kept in ("ovserve_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"):
        assert family(metrics, kept) == accepted
    assert usage["completion_tokens"] == 24

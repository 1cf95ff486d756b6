"""`make docs`: writes docs/metrics.md from the table of families; tests/http/test_metrics.py checks it."""

from __future__ import annotations

from ovserve.monitoring.families import (
    FAMILIES,
    HTTP_RESPONSES,
    OF_TENSOR_MODELS,
    RELOADS,
    WRONG_CONFIGURATION,
)
from tests.conftest import ROOT

FILE = ROOT / "docs/metrics.md"

INTRODUCTION = """# Metrics

Written by `make docs` from `ovserve/monitoring/families.py`; do not edit.

`GET /metrics` gives Prometheus's text format 0.0.4, on the port of the HTTP API. It is on by default, unlike
OVMS's: counting costs under a microsecond a token, and the people who need a figure most need the one from
before they knew it. `--metrics_enable false` switches it off; the answer is then a 404 that says so.
`--metrics_list ovms_responses,vllm:num_requests_waiting` shows these families alone. A name that is not in the
tables stops the server. Both options are OVMS's.

```yaml
# prometheus.yml
scrape_configs:
  - job_name: ovserve
    static_configs:
      - targets: ["127.0.0.1:8000"]
```

[examples/grafana/dashboard.json](../examples/grafana/dashboard.json) is a Grafana dashboard: import it and
choose the data source. A test compares its queries with what a running server shows.

## Of each servable

The families of the first column have the label `name`, the servable's; those of the last, vLLM's names for the
same numbers, have `model_name` and `engine` (always 0) instead. As in OVMS, `api`, `interface` and `method` are V3,
REST and Unary or Stream, or KServe, gRPC (or REST) and ModelInfer, ModelInferStream, ModelReady or ModelMetadata. Counters keep their value over reloads of the servable.
"""

NOTES = f"""
How to read them:

- A request that entered the graph ends in exactly one of finished, failed, cancelled and refused.
  `ovms_requests_accepted` is their sum and `ovms_current_graphs`. As in OVMS, `ovms_graph_error` counts clients
  that left too; `ovserve_requests_cancelled_total` tells them apart.
- Requests running and waiting, and the times from the first token on, are of choices: a request with `n: 3` is
  three of them, which share the prompt and its queue time.
- Times are taken where the engine's words arrive, so a client that reads slowly does not make the engine slow.
  Tokens that come together, as with speculative decoding, share the time since the last one.
- The KV cache, and what waits inside of the engine, are told by the engine process at most ten times a second,
  and when it falls idle. With `cache_size: 0` the cache grows, so its usage is that of its size at the moment.
- Hits of the prefix cache are counted in tokens, as vLLM does, for each choice: hits divided by queries are the
  part of the prompts that was not computed. OpenVINO GenAI 2026.4 does not tell them. The engine process keeps
  an account of the library's cache beside it, block by block, and tests compare it with the engine. It is kept
  for text models on CPU with `enable_prefix_caching`; not with a draft model, prompt lookup or
  `cache_eviction_config`, for models that take images or have linear attention, nor by the stateful pipeline:
  there both families stay 0. Of a beam search it knows the prompt only, so what the beams wrote is not counted
  as found later, and once a bounded cache is full the count is near, not exact. Should a step ever give what
  the account says it cannot, the engine's log tells so and nothing more is counted.

## Of the server

| family | type | labels | meaning |
|---|---|---|---|
| `{HTTP_RESPONSES}` | counter | `status` | HTTP responses; 499 for a client that left before one |
| `{RELOADS}` | counter | `result` | reloads: changed, unchanged, failed (a servable was not loaded) or invalid (the configuration itself) |
| `{WRONG_CONFIGURATION}` | gauge | | 1 while the configuration as it was read last cannot be used, and the one before is in force |
| `process` | | | all that begins with `process_`: memory, processor time, descriptors, start time of the server |
| `ovserve_engine_process` | | `name` | the same of each servable's engine process |

The last two are switched on together, by these names in `--metrics_list`.

## OVMS's families of tensor models

They are known, so that a list made for OVMS is taken; no graph has them, and a warning says so.
"""


def text() -> str:
    lines = [INTRODUCTION, "| family | type | labels | meaning | vLLM's name |", "|---|---|---|---|---|"]
    for f in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in f.labels)
        also = f"`{f.vllm}`" if f.vllm else ""
        lines.append(f"| `{f.name}` | {f.kind} | {labels} | {f.help.rstrip('.')} | {also} |")
    lines += [NOTES, ", ".join(f"`{name}`" for name in sorted(OF_TENSOR_MODELS)) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())

"""Scaling on the queues of the servers, for the data plane in which Ray Serve has no queue (HAProxy).

Every replica reports `METRIC`; `by_queue` runs in Serve's controller several times a second, so it does only
arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

METRIC = "ovserve_requests"  # that a replica computes, or that wait in it
GAUGES = ("ovserve_requests_running", "ovserve_requests_waiting")


def requests_in(page: str) -> float:
    """Return the requests that a server has, from its page of metrics."""
    lines = (line.rpartition(" ") for line in page.splitlines())
    return sum(float(value) for sample, _, value in lines if sample.partition("{")[0] in GAUGES)


def by_queue(context: Any, target_requests: float = 12.0) -> tuple[int, dict[str, Any]]:
    """Return how many replicas have `target_requests` each, for a ray.serve.config.AutoscalingContext.

    Serve applies its delays and bounds to the result. Replicas that have not reported yet count as empty.
    """
    reported = (context.aggregated_metrics or {}).get(METRIC, {})
    if not reported:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(reported.values()) / target_requests)), {}

"""Scaling on the queues of the servers, for the data plane in which Ray Serve has no queue (HAProxy).

Every replica reports `METRIC`; `ByQueue` runs in Serve's controller several times a second, so it does only
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


class ByQueue:
    """A policy of Serve. It is a class because Serve gives its `policy_kwargs` to classes only."""

    def __init__(self, target_requests: float) -> None:
        self._target = target_requests

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return how many replicas have the target each, for a ray.serve.config.AutoscalingContext.

        Serve applies its delays and bounds to the result. Replicas that have not reported count as empty.
        """
        reported = (context.aggregated_metrics or {}).get(METRIC, {})
        if not reported:
            return context.target_num_replicas, {}
        return max(1, math.ceil(sum(reported.values()) / self._target)), {}

"""Numbers and answers that concern all replicas, made from each replica's own.

With HAProxy, Ray Serve has no queue, so it scales on the queues of the servers. Every replica reports
`METRIC`; `ByQueue` runs in Serve's controller several times a second, so it does only arithmetic.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
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


_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<rest>[^ ].*)")
ORDER = ("END", "UNLOADING", "START", "LOADING", "AVAILABLE")  # the first that a replica reports is shown
OK = "OK"


def metrics(pages: Mapping[str, str]) -> str:
    """Return one page of Prometheus text from those of several replicas, by their name.

    Each sample gets the label `replica`; families keep their order, and their HELP and TYPE are not repeated.
    """
    comments: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2] if line.count(" ") >= 2 else family
                lines_of_family = comments.setdefault(family, [])
                if line not in lines_of_family:
                    lines_of_family.append(line)
            elif match := _SAMPLE.fullmatch(line):
                family = family if match["name"].startswith(family) else match["name"]
                labels = f"{match['labels']}," if match["labels"] else ""
                text = f'{match["name"]}{{{labels}replica="{replica}"}} {match["rest"]}'
                samples.setdefault(family, []).append(text)
    order = dict.fromkeys((*comments, *samples))
    lines = [line for family in order for line in (*comments.get(family, ()), *samples.get(family, ()))]
    return "\n".join(lines) + "\n"


def states(documents: Mapping[str, Mapping[str, Any]], faults: Mapping[str, str]) -> bytes:
    """Return GET /v1/config for several replicas: of each graph the least advanced state, and who reports
    it. `faults` say why a replica does not serve the configuration that it was given."""
    merged: dict[str, dict[str, dict[str, Any]]] = {}
    for replica, document in documents.items():
        for name, model in document.items():
            for version in model["model_version_status"]:
                best = merged.setdefault(name, {}).setdefault(version["version"], version | {"of": replica})
                if _rank(version) < _rank(best):
                    merged[name][version["version"]] = version | {"of": replica}
    for name, versions in merged.items():
        for number, version in versions.items():
            replica = version.pop("of")
            absent = sorted(r for r, d in documents.items() if name not in d)
            notes = [f"not on replica {r}" for r in absent] + [f"replica {r}: {f}" for r, f in faults.items()]
            if version["status"]["error_code"] != OK:
                notes.insert(0, f"replica {replica}: {version['status']['error_message']}")
            if notes:
                versions[number] = version | {
                    "status": version["status"] | {"error_message": "; ".join(notes)}
                }
    return json.dumps({n: {"model_version_status": list(v.values())} for n, v in merged.items()}).encode()


def failures(document: Mapping[str, Any]) -> list[str]:
    """Return the graphs of a GET /v1/config that cannot be served, with the reasons."""
    return [
        f"{name}: {version['status']['error_message']}"
        for name, model in document.items()
        for version in model["model_version_status"]
        if version["status"]["error_code"] != OK
    ]


def loading(document: Mapping[str, Any]) -> bool:
    """Return whether a graph of a GET /v1/config is still being loaded."""
    return any(
        version["state"] in ("LOADING", "START") and version["status"]["error_code"] == OK
        for model in document.values()
        for version in model["model_version_status"]
    )


def _rank(version: Mapping[str, Any]) -> tuple[bool, int]:
    state = version["state"]
    return version["status"]["error_code"] == OK, ORDER.index(state) if state in ORDER else 0

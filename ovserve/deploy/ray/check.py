"""The check before a deployment: what `ovserve check` would report for each graph."""

from __future__ import annotations

from collections.abc import Sequence

from ovserve.calculators.shipped import shipped_registry
from ovserve.errors import LoadError
from ovserve.sandbox.templates import Templates
from ovserve.serving.check import report
from ovserve.serving.settings import ServableSpec


async def check(specs: Sequence[ServableSpec]) -> int:
    """Return the smallest `max_num_seqs` of the engines, 0 if no engine has one. Raises LoadError with all
    faults if something would not be served."""
    registry = shipped_registry()
    plain = [spec.name for spec in specs if spec.plain]
    templates = Templates()
    faults: list[str] = []
    limits: list[int] = []
    try:
        for spec in specs:
            one = await report(spec, registry, templates, None, plain)
            faults += [f"{spec.label}: {error}" for error in one.errors]
            limits += [number for model in one.models if (number := getattr(model.spec, "max_num_seqs", 0))]
    finally:
        await templates.stop()
    if faults:
        raise LoadError("not deployed: " + "; ".join(faults))
    if not specs:
        raise LoadError("not deployed: nothing is served")
    return min(limits, default=0)

"""Gate: what stands between the nodes of a graph and their engine. Made by `loader.py`, in place of the
engine itself; it counts each request for the metrics of its servable, whoever else uses the same engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ovserve.calculators.resources import DeltaStream
from ovserve.engine.client import EngineClient
from ovserve.engine.meter import Meter
from ovserve.llm.request import GenerateRequest


class Gate:
    """A `calculators.resources.Generator`."""

    def __init__(self, engine: EngineClient, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter

    async def generate(self, request: GenerateRequest) -> DeltaStream:
        self._meter.ignored_params += len(request.ignored_params)
        return await self._engine.generate(request, self._meter, time.monotonic())

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        return await self._engine.tokenize(texts, add_special_tokens=add_special_tokens)

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        return await self._engine.detokenize(rows, skip_special_tokens=skip_special_tokens)

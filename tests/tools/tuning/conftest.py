"""A tuner without engines: speeds and texts are a table of options, so the search's decisions are exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import LoadError
from ovserve.tools.tuning.graph_file import applied
from ovserve.tools.tuning.prompts import Round, Speed

SPEC = TextSpec("/m.gguf", max_num_seqs=64)


class Table:
    """Tokens per second of an engine: 100, times the factor of each of its properties that has one. `drift`
    is what the machine does to every round, by its number."""

    def __init__(
        self,
        factors: Mapping[str, float],
        *,
        texts: Mapping[str, str] | None = None,
        broken: frozenset[str] = frozenset(),
        drift: Callable[[int], float] = lambda number: 1.0,
    ) -> None:
        self.load_seconds = 0.0
        self.rounds: list[str] = []
        self.loaded: list[str] = []
        self._factors, self._texts, self._broken, self._drift = factors, texts or {}, broken, drift

    async def engine(self, spec: TextSpec) -> None:
        self.loaded.append(spec.properties)
        if bad := self._set(spec) & self._broken:
            raise LoadError(f"the library says no to {bad.pop()}")

    async def pair(self, first: TextSpec, second: TextSpec) -> tuple[Round, Round]:
        return self._round(first), self._round(second)

    async def texts(self, spec: TextSpec) -> list[str]:
        changed = [text for name, text in self._texts.items() if name in self._set(spec)]
        return ["the same", changed[0] if changed else "as it was"]

    async def drop(self, spec: TextSpec) -> None: ...

    def _round(self, spec: TextSpec) -> Round:
        speed = 100.0
        for name in self._set(spec):
            speed *= self._factors.get(name, 1.0)
        speed *= self._drift(len(self.rounds))
        self.rounds.append(spec.properties)
        return {1: Speed(speed, 0.1), 8: Speed(4 * speed, 0.3)}

    @staticmethod
    def _set(spec: TextSpec) -> set[str]:
        return {f"{name}={value}" for name, value in json.loads(spec.properties).items()}


__all__ = ["SPEC", "Table", "applied"]

"""The side packet of LLM nodes: the engine and what is known of its model. Built by `serving/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ovserve.llm.model import ModelContext
from ovserve.llm.request import Delta, GenerateRequest


class DeltaStream(Protocol):
    """One answer under way. Ends with a delta that has a finish_reason, or with an exception."""

    async def next(self) -> Delta: ...

    def abort_if_running(self) -> None: ...


class Generator(Protocol):
    """What the executor needs of an engine (engine.client.EngineClient in the server)."""

    async def generate(self, request: GenerateRequest) -> DeltaStream: ...

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]: ...

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]: ...


@dataclass(frozen=True)
class LlmResources:
    engine: Generator
    model: ModelContext

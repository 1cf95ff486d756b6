"""The grammars that the current engine process holds compiled, after `grammar_prover.py` has validated them.

The library's compiler only ever adds to its cache. When that is full by count or size, the engine must
drop everything, which discards the compiler; what is needed later is compiled again. That happens only while
no request waits for a compilation, so a grammar that was waited for is there when its request is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ovserve.engine.client.calls import PendingCalls
from ovserve.engine.client.grammar_prover import GrammarLimits
from ovserve.engine.protocol.messages import ClearGrammars, Compile
from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.constraint import Constraint, digest


class CompiledGrammars:
    def __init__(self, limits: GrammarLimits) -> None:
        self._limits = limits
        self._held: set[bytes] = set()
        self._sizes: list[int] = []  # text sizes of the grammars requested since the last drop
        self._memory = 0  # bytes that they use, as far as measured
        self._under_way = 0
        self._none_under_way = asyncio.Event()
        self.drops = 0

    def __contains__(self, constraint: Constraint) -> bool:
        return digest(constraint.format) in self._held

    def renew(self) -> None:
        """Reset for a new process, which holds no grammar."""
        self._held, self._sizes, self._memory = set(), [], 0

    async def add(
        self,
        send: Callable[[Any], None],
        pending: PendingCalls,
        constraint: Constraint,
        memory: int | None = 0,
    ) -> None:
        """Have the process compile it. `memory`: bytes that a trial used for it; None: it was not tried.

        Raises what `pending.call` raises; InvalidArgument with the field of the request.
        """
        while self._full and self._under_way:
            await self._none_under_way.wait()
        if constraint in self:
            return
        if self._full:
            send(ClearGrammars())
            self.renew()
            self.drops += 1
        held = self._held
        self._sizes.append(len(constraint.format))
        self._memory += memory or 0
        self._under_way += 1
        self._none_under_way.clear()
        try:
            compile_ = partial(Compile, format=constraint.format, tried=memory is not None)
            used: int = await pending.call(send, compile_)
            self._memory += max(used - (memory or 0), 0)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{constraint.param}: the grammar does not compile: {error.message}", param=constraint.param
            ) from error
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()
        held.add(digest(constraint.format))  # a stale set if the process was replaced meanwhile

    @property
    def _full(self) -> bool:
        limits = self._limits
        return (
            len(self._sizes) >= limits.compiled
            or sum(self._sizes) >= limits.compiled_bytes
            or self._memory >= limits.compiled_memory
        )

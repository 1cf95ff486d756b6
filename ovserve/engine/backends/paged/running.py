"""A request in the step loop: its tokens, its place in the KV cache, and how its next token is chosen."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered
from typing import NamedTuple

from ovserve.engine.backends.paged.drafts import Lookup
from ovserve.engine.backends.paged.sampler import Choice, Scored
from ovserve.engine.decoding.sequence import Part, Sequence

MARK = 1.0  # in place of the log-probability of the first token, which has none: see `Sequence`


class Running:
    def __init__(self, sequence: Sequence, ids: Ordered[int], choice: Choice, most: int) -> None:
        """`most`: tokens that may be generated; 0: no bound."""
        self.id = sequence.id
        self.sequence = sequence
        self.choice = choice
        self.lookup: Lookup | None = None
        self.ids = array("q", ids)  # of the prompt, then of the answer
        self.prompt = len(self.ids)
        self.computed = 0  # of these, those whose keys and values are in the cache
        self.blocks = array("i")
        self.contents: list[int] = []  # of the full blocks (see `BlockPool`)
        self.forgotten = False  # it had a place in the cache and lost it
        self.full = False  # no other request is left that could give it a block
        self.most = most
        self.scores = sequence.sampling.echo and sequence.sampling.logprobs  # the prompt's tokens too
        self._new: list[int] = []
        self._scored: list[Scored] = []
        self._echo: list[Scored] = []
        self._echoes = sequence.sampling.echo

    @property
    def unread(self) -> int:
        """Tokens to compute before the next one can be chosen; 1 while it decodes."""
        return len(self.ids) - self.computed

    @property
    def left(self) -> int | None:
        """Tokens that may still be generated; None: any number."""
        return self.most - (len(self.ids) - self.prompt) if self.most else None

    def gain(self, token: int, scored: Scored | None) -> None:
        self.ids.append(token)
        self._new.append(token)
        if scored is not None:
            self._scored.append(scored)

    def echo(self, scored: list[Scored]) -> None:
        """Log-probabilities of the next tokens of the prompt."""
        self._echo += scored

    def forget(self) -> array[int]:
        """Lose its place in the cache; return the blocks."""
        blocks, self.blocks = self.blocks, array("i")
        self.computed, self.forgotten = 0, True
        self.contents.clear()
        self._echo.clear()
        return blocks

    def take(self) -> list[Part] | None:
        """Return what is new, in the form that `Sequence.read` knows; None: nothing."""
        if self.full:
            return []
        if not self._new:
            return None
        ids, scored = self._new, self._scored
        self._new, self._scored = [], []
        if self._echoes:
            self._echoes = False
            ids = [*self.ids[: self.prompt], *ids]
            scored = [Scored(MARK), *self._echo, *scored] if self.sequence.sampling.logprobs else []
        finish = "length" if self.left == 0 else None
        return [Part(ids, [each.logprob for each in scored], 0.0, finish, [each.top for each in scored])]


class Turn(NamedTuple):
    """The part of a request that a step computes: `tokens` of it from `running.computed` on, the last of them
    drafted."""

    running: Running
    tokens: int
    drafted: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Tokens whose logits are needed, the last ones."""
        running = self.running
        if running.scores and running.computed < running.prompt:
            return self.tokens
        return 1 + len(self.drafted) if running.computed + self.tokens >= len(running.ids) else 0

"""The prefixes that recent prompts share, of an engine that may lose its cache.

While the engine answers, only the prompts are kept: which of them share what is computed when it is asked
for, in a thread. Of an engine that is unloaded, only what prompts share is kept. A prompt is a rendered text
or token ids, as its request had it; both are cut, because a text is never tokenized here.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ovserve.engine.client.tokenizer.process import LONG_TEXT
from ovserve.llm.request import Prompt

MOST_PROMPTS = 128
MOST_BYTES = 2 << 20
TEXT_PER_TOKEN = 4  # characters, an estimate
MOST_TEXT, MOST_IDS = LONG_TEXT, LONG_TEXT // TEXT_PER_TOKEN  # what is kept of a prompt
LEAST_TOKENS = 64  # of a prefix that is worth a request: two blocks of the cache
MOST_PREFIXES = 16
ID_BYTES = 36  # of memory, in a tuple of ints


class SharedPrefix(NamedTuple):
    """The beginning of `uses` prompts."""

    prompt: Prompt
    special: bool  # special tokens are added to it
    uses: int = 0

    @property
    def tokens(self) -> float:
        """Return about how many tokens it has."""
        return _tokens(self.prompt)


class _Kept(NamedTuple):
    prompt: Prompt
    special: bool
    bytes: int


class PromptRecord:
    """The prompts of the last requests: at most MOST_PROMPTS and MOST_BYTES of memory."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._fresh = 0  # prompts since `renew`
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, prompt: Prompt, *, special: bool) -> None:
        """Keep the beginning of a prompt."""
        if isinstance(prompt, str):
            prompt = prompt[:MOST_TEXT]
            size = sys.getsizeof(prompt)
        else:
            prompt = prompt[:MOST_IDS]
            size = ID_BYTES * len(prompt)
        self._append(_Kept(prompt, special, size))
        self._fresh = min(self._fresh + 1, len(self._kept))

    def _append(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self.bytes += kept.bytes
        while self.bytes > MOST_BYTES or len(self._kept) > MOST_PROMPTS:
            self.bytes -= self._kept.popleft().bytes

    def renew(self) -> None:
        """Record that the cache of the engine is empty."""
        self._fresh = 0

    def cached(self, prefix: SharedPrefix) -> bool:
        """Return whether a prompt since `renew` began with it."""
        fresh = itertools.islice(reversed(self._kept), self._fresh)
        return any(one.special == prefix.special and _begins(one.prompt, prefix.prompt) for one in fresh)

    def clear(self) -> None:
        self._kept.clear()
        self._fresh = self.bytes = 0

    async def shared(self) -> list[SharedPrefix]:
        """Return the prefixes that at least two prompts share, the most valuable first."""
        return await asyncio.to_thread(_shared, tuple(self._kept))

    async def drop_unshared(self) -> None:
        """Keep only what prompts share with another; valid while no request is under way."""
        cut = await asyncio.to_thread(_without_rests, tuple(self._kept))
        self.clear()
        for kept in cut:
            self._append(kept)


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common beginning, in linear time without a loop over elements."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _tokens(prompt: Prompt) -> float:
    return len(prompt) / TEXT_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def _begins(prompt: Prompt, prefix: Prompt) -> bool:
    return prompt[: len(prefix)] == prefix  # never equal if one is a text and the other one is ids


def _sorted(kept: Iterable[_Kept]) -> Iterable[list[int]]:
    """Yield the indices of prompts that may share something, so that those that share most are neighbours."""
    prompts = [one.prompt for one in kept]
    alike: defaultdict[tuple[bool, bool], list[int]] = defaultdict(list)
    for i, one in enumerate(kept):
        alike[isinstance(one.prompt, str), one.special].append(i)
    for indices in alike.values():
        yield sorted(indices, key=prompts.__getitem__)  # all texts, or all ids


def _shared(kept: Sequence[_Kept]) -> list[SharedPrefix]:
    found: list[SharedPrefix] = []
    for indices in _sorted(kept):
        prompts = [kept[i].prompt for i in indices]
        prefixes = {a[: common(a, b)] for a, b in itertools.pairwise(prompts)}
        for prefix in prefixes:
            if _tokens(prefix) >= LEAST_TOKENS:
                uses = sum(_begins(prompt, prefix) for prompt in prompts)
                found.append(SharedPrefix(prefix, kept[indices[0]].special, uses))
    return _most_valuable(found)


def _most_valuable(found: list[SharedPrefix]) -> list[SharedPrefix]:
    """Choose by the number of uses times the tokens that those chosen before do not cover."""
    left = {prefix: prefix.tokens for prefix in found}
    chosen: list[SharedPrefix] = []
    while left and len(chosen) < MOST_PREFIXES:
        best = max(left, key=lambda prefix: prefix.uses * left[prefix])
        if left.pop(best) >= LEAST_TOKENS:
            chosen.append(best)
        for prefix in left:
            if prefix.special == best.special and type(prefix.prompt) is type(best.prompt):
                beyond = prefix.prompt[common(prefix.prompt, best.prompt) :]
                left[prefix] = min(left[prefix], _tokens(beyond))
    return chosen


def _without_rests(kept: Sequence[_Kept]) -> list[_Kept]:
    """Cut each prompt to the longest beginning that another one shares; drop what is too short then."""
    lengths = [0] * len(kept)
    for indices in _sorted(kept):
        for i, j in itertools.pairwise(indices):
            length = common(kept[i].prompt, kept[j].prompt)
            lengths[i], lengths[j] = max(lengths[i], length), max(lengths[j], length)
    same: dict[Prompt, Prompt] = {}
    cut: list[_Kept] = []
    for one, length in zip(kept, lengths, strict=True):
        prompt = one.prompt[:length]
        if _tokens(prompt) >= LEAST_TOKENS:
            prompt = same.setdefault(prompt, prompt)
            size = sys.getsizeof(prompt) if isinstance(prompt, str) else ID_BYTES * len(prompt)
            cut.append(_Kept(prompt, one.special, size))
    return cut

"""A request in an engine: its ids become text without stop strings, counts, log-probabilities and an end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from ovserve.engine.protocol.messages import StepItem
from ovserve.llm.decoding import Mode
from ovserve.llm.request import Sampling, TokenLogprob
from ovserve.llm.token_bytes import TokenWindow, tokens_before

# The part of an answer that was not sent yet.
#
# It cuts at stop strings. It also decides that a step without new text sends nothing: every
# message wakes the server, and on a small machine that costs tokens per second.
#
# Stop strings are matched here on text, exactly at the character. The engine library matches whole tokens:
# it trims text before the stop string that shares a token with it, and lets a stop string through that ends
# inside one (measured).
#
# Of several matches, the one that is complete first wins; of those that complete together, the longest. So
# the result does not depend on how the text is cut into chunks. At most the longest tail that could still
# become a stop string is held back.


class StopMatcher:
    """One per request. After a match the matcher is done and must not be fed again."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would match before the first character")
        self._stops, self._firsts = stops, frozenset(stop[0] for stop in stops)
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text
        self.surplus = 0  # characters behind it

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may go out now, and whether a stop string ended it."""
        text = self._held + text
        # What is held begins a stop string. This takes 0.8 us a token; a search takes 2 us for each string.
        if self._firsts.isdisjoint(text):
            return text, False
        if match := self._first_match(text):
            end, start = match
            self._held, self.matched, self.surplus = "", text[start:end], len(text) - end
            return text[: end if self._include else start], True
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """Return what was held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return the end and the start of the match that ends first."""
        matches = ((start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0)
        return min(matches, default=None)

    def _possible_start(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class Output:
    def __init__(self, request_id: int, sampling: Sampling, index: int = 0) -> None:
        self.id = request_id
        self.index = index
        self.last_index = sampling.n - 1 if sampling.beams > 1 else 0  # beams end together, in order
        self.tokens = 0
        self.total = 0
        self.drafted = 0  # since the last item was sent; so is the next field
        self.accepted = 0
        self.finish: str | None = None
        self.stop_string: str | None = None
        self.surplus = 0  # characters of the last text behind the stop string
        self.repetitive = False
        self._text = ""
        self._text_bytes = 0  # sent and ready to be sent
        self._stops = StopMatcher(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self._logprobs: list[TokenLogprob] | None = [] if sampling.logprobs else None
        self._logprob_bytes = 0

    def count(self, tokens: int) -> None:
        self.tokens += tokens
        self.total += tokens

    def count_drafts(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def uncount_after(self, total: int) -> None:
        """Take back the count of tokens after the first `total`: drafts of the same step behind a stop."""
        excess = self.total - total
        self.count(-excess)
        self.count_drafts(0, -min(excess, self.accepted))

    def echo(self, prompt: str) -> None:
        """Put the prompt at the beginning of the answer; stop strings are not searched in it."""
        self._add(prompt)

    def add_text(self, text: str) -> bool:
        """Return True when a stop string ended the answer; the engine must then cancel it."""
        if self._stops is None:
            self._add(text)
            return False
        text, matched = self._stops.feed(text)
        self._add(text)
        if matched:
            self.finish, self.stop_string, self.repetitive = "stop", self._stops.matched, False
            self.surplus = self._stops.surplus
            self._stops = None
            self._cut_logprobs()
        return matched

    def add_logprobs(self, logprobs: list[TokenLogprob]) -> None:
        if self._logprobs is not None:
            self._logprobs += logprobs

    def take(self) -> StepItem | None:
        if self.finish is not None and self._stops is not None:
            self._add(self._stops.flush())
        if not self._text and self.finish is None:
            return None
        last = self.finish is not None and self.index == self.last_index
        item = StepItem(
            self.id,
            self._text,
            self.tokens,
            self.finish,
            self.index,
            self._logprobs or None,
            last,
            self.drafted,
            self.accepted,
            self.stop_string,
            self.repetitive,
        )
        self._text, self.tokens, self.drafted, self.accepted = "", 0, 0, 0
        if self._logprobs:
            self._logprob_bytes += sum(len(token.utf8) for token in self._logprobs)
            self._logprobs = []
        return item

    def _add(self, text: str) -> None:
        self._text += text
        self._text_bytes += len(text.encode("utf-8", "replace"))

    def _cut_logprobs(self) -> None:
        """Drop tokens that begin behind the cut: they are not part of the text."""
        if self._logprobs is None:
            return
        at, logprobs = self._logprob_bytes, []
        for token in self._logprobs:
            if at >= self._text_bytes:
                break
            logprobs.append(token)
            at += len(token.utf8)
        self._logprobs = logprobs


# One request inside the real engine: its ids become text, counts, log-probabilities and an end.
#
# Nothing here touches the library. A request has one branch, or with beam search the n best, which all
# arrive at the end. An echoed prompt comes back in front of the first ids. Its text is already known, so
# only its log-probabilities matter.
#
# Of drafts the library reports how many tokens a step gave, not how many it tried. Kept ones are all but the
# last of a step, which the model itself chose. What a draft model tried follows from the settings.
#
# An answer that only repeats itself ends before the context does. Small models fall into loops, such as
# "Hello!" until the context is full. An answer is *repetitive* when its last WINDOW_TOKENS tokens repeat
# one pattern of up to MAX_PATTERN tokens exactly. The longest such stretch in 5,000 files of code, data and
# manuals, 8.2 million tokens, has 125. vLLM has the same rule with numbers per request:
# `repetition_detection` of https://docs.vllm.ai/en/latest/api/vllm/sampling_params/, read 2026-11-26.


WINDOW_TOKENS = 256
MAX_PATTERN = 64
CHECK_INTERVAL = 32  # tokens from one check to the next, which takes a few microseconds


class RepetitionDetector:
    """Checks after every CHECK_INTERVAL tokens from the first on. So the end of an answer does not depend on
    how many come at a time."""

    def __init__(self) -> None:
        self._tail: list[int] = []
        self._next = WINDOW_TOKENS  # length of the tail at the next check

    def find(self, ids: list[int]) -> int | None:
        """Return how many of the next ids there are until the answer is repetitive; None: it is not."""
        tail = self._tail
        before = len(tail)
        tail += ids
        while self._next <= len(tail):
            if is_repetitive(tail, self._next):
                return self._next - before
            self._next += CHECK_INTERVAL
        if len(tail) > 4 * WINDOW_TOKENS:
            excess = self._next - WINDOW_TOKENS
            del tail[:excess]
            self._next -= excess
        return None


def is_repetitive(ids: list[int], end: int) -> bool:
    """Return whether the WINDOW_TOKENS ids before `end` repeat one pattern."""
    last, start = ids[end - 1], end - WINDOW_TOKENS
    return any(
        ids[end - 1 - size] == last
        and ids[end - CHECK_INTERVAL : end] == ids[end - CHECK_INTERVAL - size : end - size]
        and ids[start + size : end] == ids[start : end - size]
        for size in range(1, MAX_PATTERN + 1)
    )


class DraftCounter(Protocol):
    def count_step(self, ids: list[int], num_tokens: int) -> tuple[int, int]:
        """Return drafted and accepted tokens of a step of which `num_tokens` ids belong to the answer."""


class SpeculativeStats:
    """Counts for the library's drafts: a draft model proposes the configured number, less near the end.

    The number is unknown with prompt lookup and with a confidence threshold; nothing is counted as drafted
    then.
    """

    def __init__(self, mode: Mode, sampling: Sampling, max_tokens: int) -> None:
        self._tokens = 0 if mode == "prompt_lookup" else sampling.num_assistant_tokens or 0
        self._left = max_tokens or sys.maxsize
        self._begun = False

    def count_step(self, ids: list[int], num_tokens: int) -> tuple[int, int]:
        drafted = accepted = 0
        if self._begun:  # the first token comes from the prompt alone
            drafted = max(0, min(self._tokens, self._left - 1))
            accepted = max(0, num_tokens - 1)
        self._begun = True
        self._left -= len(ids)
        return drafted, accepted


UNKNOWN_PROBABILITY = 1.0
NO_LOGPROB = 0.5  # the library marks the first echoed token with 1.0; a log-probability is never positive


Top = tuple[tuple[int, float], ...]  # the most likely ids with their log-probabilities, best first
Scored = tuple[int, float | None, Top]


class Part(NamedTuple):
    """The library's result for one branch since the last read."""

    ids: list[int]
    logprobs: list[float]
    score: float
    finish: str | None
    tops: list[Top] = []


class Branch:
    def __init__(self, output: Output) -> None:
        self.output = output
        self.counts: list[int] = []  # with stop strings, the output's total at each id in the window
        self.window = TokenWindow()
        self.scored: list[Scored] = []  # of visible ids


class Sequence:
    def __init__(
        self,
        handle: Any,  # the library's GenerationHandle
        request_id: int,
        sampling: Sampling,
        prompt_tokens: int,
        stop_ids: frozenset[int],
        hidden: frozenset[int],
    ) -> None:
        self.handle = handle
        self.id = request_id
        self.sampling = sampling
        self.prompt_tokens = prompt_tokens
        self.cache_full = False
        self.drafts: DraftCounter | None = None  # the count of drafted tokens, if any are drafted
        self._stop_ids = stop_ids
        self._hidden = hidden
        self._echoing = sampling.echo
        detects = sampling.repetition_detection and sampling.beams == 1  # beams come all at the end
        self._repetition = RepetitionDetector() if detects else None
        count = sampling.n if sampling.beams > 1 else 1
        self.branches = [Branch(Output(request_id, sampling, i)) for i in range(count)]

    def process(self, parts: list[Part]) -> None:
        """Process one read of the handle; no part at all means that the cache is full."""
        if not parts:
            self.cache_full = True
            for branch in self.branches:
                branch.output.finish = "length"
        elif self.sampling.beams > 1:
            best = sorted(parts, key=lambda part: part.score, reverse=True)
            for branch, part in zip(self.branches, best, strict=False):
                self._push(branch, part)
            for branch in self.branches[len(best) :]:
                branch.output.finish = "stop"  # fewer beams than asked for: no choice may stay open
        else:
            for part in parts:
                self._push(self.branches[0], part)
        self._echoing = False

    def _push(self, branch: Branch, part: Part) -> None:
        output, ids, logprobs, start = branch.output, part.ids, part.logprobs, 0
        tops = part.tops or [()] * len(ids)
        output.finish = part.finish or output.finish
        if self._echoing:
            start = self.prompt_tokens
            # The library does not compute what the prefix cache had, so its log-probabilities begin later.
            logprobs = [UNKNOWN_PROBABILITY] * (len(ids) - len(logprobs)) + logprobs
            if self.sampling.logprobs:
                branch.scored += [
                    (id_, logprob if logprob < NO_LOGPROB else None, top)
                    for id_, logprob, top in zip(ids[:start], logprobs[:start], tops[:start], strict=True)
                ]
            ids = ids[start:]
        if self.sampling.max_tokens == 0:  # one token was requested, because engines need one
            ids, output.finish = [], "length"
        all_ids = ids
        if self._repetition is not None and (end := self._repetition.find(ids)) is not None:
            ids, output.finish, output.repetitive = ids[:end], "length", True
        visible = ids
        if not self._stop_ids.isdisjoint(ids):
            end = next(at for at, id_ in enumerate(ids) if id_ in self._stop_ids)
            num_visible = end + 1 if self._shows_end(ids[end]) else end
            ids, visible = ids[: end + 1], ids[:num_visible]
            output.finish, output.repetitive = "stop", False
        if self.sampling.stop and self.sampling.beams == 1:
            totals = enumerate(visible, output.total + 1)
            branch.counts += [total for total, id_ in totals if id_ not in self._hidden]
        output.count(len(ids))
        if self.drafts is not None:
            output.count_drafts(*self.drafts.count_step(all_ids, len(ids)))
        if self.sampling.logprobs:
            branch.scored += [
                (id_, logprob, top)
                for id_, logprob, top in zip(visible, logprobs[start:], tops[start:], strict=False)
                if id_ not in self._hidden
            ]
        if not self._hidden.isdisjoint(visible):
            visible = [id_ for id_ in visible if id_ not in self._hidden]
        if visible:
            branch.window.push(visible)

    def _shows_end(self, id_: int) -> bool:
        """Return whether the token that ended the answer is text: one of the model's own, with special tokens
        shown."""
        return not self.sampling.skip_special_tokens and id_ not in self.sampling.stop_token_ids

    def rows(self) -> list[list[int]]:
        """Return the rows to decode for `advance`."""
        return [
            row
            for branch in self.branches
            if branch.window.pending
            for row in branch.window.rows(each=len(branch.counts) > 1)
        ]

    def score(self, convert: Callable[[list[Scored]], list[TokenLogprob]]) -> None:
        """Put the log-probabilities so far into the next items, if they are wanted."""
        if self.sampling.logprobs:
            for branch in self.branches:
                branch.output.add_logprobs(convert(branch.scored))
                branch.scored = []

    def advance(self, texts: Iterator[str]) -> list[StepItem]:
        """Return the items to send, given the decoded rows."""
        items = []
        for branch in self.branches:
            output, window = branch.output, branch.window
            text, start, prefixes, counts = "", 0, [], branch.counts
            if window.pending:
                context = next(texts)
                start = len(context) - window.held
                if counts:
                    prefixes, branch.counts = [next(texts) for _ in counts[1:]], []
                text = window.take(context, next(texts))
            if output.finish is not None:
                text += window.flush()
            if text and output.add_text(text) and prefixes:
                end = start + len(text) - output.surplus
                output.uncount_after(counts[tokens_before(end, prefixes)])
            item = output.take()
            if item is not None:
                items.append(item)
        return items

    @property
    def finished(self) -> bool:
        return self.branches[0].output.finish is not None

    @property
    def generated(self) -> int:
        return sum(branch.output.total for branch in self.branches)

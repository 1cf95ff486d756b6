"""Bounds the tokens of prompts that a step computes.

The prefill tokens of a step are bounded, so that the gap between the tokens of decodes stays short. While
requests decode, a step should take TARGET_STEP_SECONDS. So it prefills as many tokens as earlier steps did in
the time that a step of decodes alone leaves. Where more requests wait for their first token than decode, it
may take longer in that proportion. With no decode it is as long as it may be.

Where a step of decodes alone takes a third of that and more, prefill has two thirds of the time. So a burst
is prefilled at nearly full speed. Time is passed in, so the same steps always give the same numbers.
"""

from __future__ import annotations

TARGET_STEP_SECONDS = 0.15  # about the pace of a reader; longer gaps are seen as stutter
PREFILL_TIME_RATIO = 2.0  # of the time of a plain step, at least for prompts
MIN_PREFILL_TOKENS = 32  # tokens, a block of the KV cache: a prompt always goes on
# A token with so many before it takes twice as long as the first one. It is 2,100 for SmolLM2 and more for
# larger models; it matters only where the depth changes at once, because what is measured follows a prompt.
COST_DOUBLING_DEPTH = 4096
# A plain step of so many answers takes twice as long as one of a single answer, or a little less. What is
# measured follows; in a burst more and more requests answer, and no step is plain.
COST_DOUBLING_ANSWERS = 12
EWMA_WEIGHT = 0.5  # of what is known, kept at each step
# Times what is known, the most that a plain step counts. One that the machine held up would otherwise leave
# the steps of a whole prompt unbounded, because no plain step follows until that is read.
MAX_OUTLIER_RATIO = 2.0


class PrefillBudget:
    def __init__(self) -> None:
        self._plain = 0.0  # seconds of a step without prefill, per weight of its decodes
        self._seconds = self._prefilled = 0.0  # of prefill, for so many tokens; the last steps count most

    def record_step(self, num_decoding: int, tokens: int, depth: int, seconds: float) -> None:
        """Record a step that prefilled `tokens`, with `depth` computed ones of the longest prompt."""
        if not tokens:
            plain = seconds / (1 + num_decoding / COST_DOUBLING_ANSWERS)
            self._plain = min(plain, MAX_OUTLIER_RATIO * self._plain) if self._plain else plain
            return
        plain = min(self._decode_step(num_decoding), seconds / 2)
        self._seconds = EWMA_WEIGHT * self._seconds + seconds - plain
        self._prefilled = EWMA_WEIGHT * self._prefilled + tokens * _weight(depth)

    def tokens(self, num_decoding: int, waiting: int, depth: int, most: int) -> int:
        """Return how many tokens to prefill in the next step, up to `most`.

        `waiting`: requests without a first token. `depth`: computed tokens of the longest prompt."""
        if not num_decoding:
            return most
        if not self._prefilled:
            return min(MIN_PREFILL_TOKENS, most)
        target = TARGET_STEP_SECONDS * max(1.0, waiting / num_decoding)
        plain = self._decode_step(num_decoding)
        room = max(target - plain, PREFILL_TIME_RATIO * plain)
        token = self._seconds / self._prefilled * _weight(depth)
        return min(max(int(room / token), MIN_PREFILL_TOKENS), most)

    def _decode_step(self, num_decoding: int) -> float:
        return self._plain * (1 + num_decoding / COST_DOUBLING_ANSWERS) if num_decoding else 0.0


def _weight(depth: int) -> float:
    return 1 + depth / COST_DOUBLING_DEPTH

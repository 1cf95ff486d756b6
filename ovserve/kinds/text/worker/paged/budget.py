"""Bounds the tokens of prompts in a step, so that those who get answers do not wait for long.

While requests are answered, a step should take TARGET_STEP_SECONDS. So it reads as many tokens of prompts
as earlier steps could in the time that a plain step leaves. Where more requests wait for their first token
than are answered, it may take longer in that proportion. With none answered it is as long as it may be.

Where a plain step alone takes a third of that and more, prompts have two thirds of the time. So a burst is
read at nearly its full speed. Time is handed in, so the same steps always give the same numbers.
"""

from __future__ import annotations

TARGET_STEP_SECONDS = 0.15  # about the pace at which text is read. Longer gaps are seen as stutter
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


class PromptBudget:
    def __init__(self) -> None:
        self._plain = 0.0  # seconds of a step without prompts, per weight of its answers
        self._seconds = self._read = 0.0  # that prompts took, for so many tokens; the last steps count most

    def measured(self, answering: int, tokens: int, depth: int, seconds: float) -> None:
        """Learn from a step that read so many `tokens` of prompts, the longest of which had `depth` before
        them."""
        if not tokens:
            plain = seconds / (1 + answering / COST_DOUBLING_ANSWERS)
            self._plain = min(plain, MAX_OUTLIER_RATIO * self._plain) if self._plain else plain
            return
        plain = min(self._plain_step(answering), seconds / 2)
        self._seconds = EWMA_WEIGHT * self._seconds + seconds - plain
        self._read = EWMA_WEIGHT * self._read + tokens * _weight(depth)

    def tokens(self, answering: int, waiting: int, depth: int, most: int) -> int:
        """Return how many tokens of prompts to read in the next step, up to `most`.

        `waiting`: requests without a first token. `depth`: tokens before those of the longest prompt."""
        if not answering:
            return most
        if not self._read:
            return min(MIN_PREFILL_TOKENS, most)
        target = TARGET_STEP_SECONDS * max(1.0, waiting / answering)
        plain = self._plain_step(answering)
        room = max(target - plain, PREFILL_TIME_RATIO * plain)
        token = self._seconds / self._read * _weight(depth)
        return min(max(int(room / token), MIN_PREFILL_TOKENS), most)

    def _plain_step(self, answering: int) -> float:
        return self._plain * (1 + answering / COST_DOUBLING_ANSWERS) if answering else 0.0


def _weight(depth: int) -> float:
    return 1 + depth / COST_DOUBLING_DEPTH

"""Count the tokens drafted for a request, and the accepted ones.

The library reports how many tokens a step gave, not how many it tried. Kept ones are all but the last of a
step, which the model itself chose. What a draft model tried follows from the settings.
"""

from __future__ import annotations

import sys
from typing import Protocol

from ovserve.llm.decoding import Mode
from ovserve.llm.request import Sampling


class DraftCounter(Protocol):
    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """Count a step whose first `kept` ids belong to the answer; return drafted and accepted tokens."""


class SpeculativeStats:
    """Counts for the library's drafts: a draft model proposes the configured number, less near the end.

    The number is unknown with prompt lookup and with a confidence threshold; nothing is counted as drafted
    then.
    """

    def __init__(self, mode: Mode, sampling: Sampling, max_tokens: int) -> None:
        self._tokens = 0 if mode == "prompt_lookup" else sampling.num_assistant_tokens or 0
        self._left = max_tokens or sys.maxsize
        self._begun = False

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        drafted = accepted = 0
        if self._begun:  # the first token comes from the prompt alone
            drafted = max(0, min(self._tokens, self._left - 1))
            accepted = max(0, kept - 1)
        self._begun = True
        self._left -= len(ids)
        return drafted, accepted

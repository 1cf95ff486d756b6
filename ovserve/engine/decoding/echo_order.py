"""Decide when a prompt whose log-probabilities are wanted may go to the library.

OpenVINO GenAI finds the log-probabilities of an echoed prompt among the logits of a step by counting rows.
It counts those of echoed prompts only, and skips requests that decode or do not echo. So the numbers of an
echoed prompt are another request's if such a request precedes it; what follows it does no harm.

So such a prompt is added while the library is empty, or right behind others of its kind if one step reads all
of them. Everything else may follow before the same step.
"""

from __future__ import annotations

from ovserve.llm.request import Sampling


def comes_first(sampling: Sampling) -> bool:
    """Return whether a request wants the log-probabilities of its prompt."""
    return sampling.echo and sampling.logprobs


class EchoOrder:
    def __init__(self, tokens: int) -> None:
        """`tokens`: max_num_batched_tokens."""
        self._tokens = tokens
        self._left = 0  # tokens of the next step, while it has only prompts of this kind

    def can_schedule(self, prompt_tokens: int, *, idle: bool) -> bool:
        """Return whether such a prompt may be added now. `idle`: the library holds no request."""
        return idle or prompt_tokens <= self._left

    def admitted(self, prompt_tokens: int, *, first: bool, idle: bool) -> None:
        """`first`: it is of this kind. `idle`: as before it was added."""
        self._left = (self._tokens if idle else self._left) - prompt_tokens if first else 0

    def stepped(self) -> None:
        self._left = 0

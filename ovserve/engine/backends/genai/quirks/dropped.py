"""Let requests go on that the library dropped because its bounded cache was full, though each fits alone.

- What the library does: a step for which no token can be scheduled drops all requests that the library has.
  It gives them the status IGNORED, without a finish reason. That happens with a full cache while a cancelled
  request still holds its blocks.
- The way around: what was dropped is added again, with the tokens that it has, when the library is empty; of
  several as many as fit together to their ends. New requests wait meanwhile.
- Requests that draft are never dropped so, and are kept here for `left_out.py`.
- Seen: tests/faults/test_long_prompts.py. Versions: OpenVINO GenAI 2026.4.1.
- It can go when a step without room leaves its requests alone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

import openvino_genai as ov_genai

from ovserve.engine.backends.genai.quirks.overtaking import Prompt
from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.decoding.drafting_room import Demand
from ovserve.llm.request import Sampling


@dataclass(eq=False)
class _Request:
    prompt: Prompt
    sampling: Sampling
    order: int
    generated: list[int] = field(default_factory=list)
    start: Callable[[], ov_genai.GenerationHandle] | None = None  # it has never been in the library


class Dropped:
    def __init__(self, block: int, room: int) -> None:
        """`block`: tokens of a block; `room`: tokens that the cache holds."""
        self._block, self._blocks = block, room // block
        self._requests: dict[int, _Request] = {}
        self._waiting: list[int] = []
        self._count = 0  # of all requests

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def admitted(self, id_: int, prompt: Prompt, sampling: Sampling) -> None:
        self._count += 1
        self._requests[id_] = _Request(prompt, sampling, self._count)

    def hold(self, id_: int, start: Callable[[], ov_genai.GenerationHandle] | None = None) -> None:
        """Have one wait for its turn, in the order of arrival. `start` adds a new one to the library."""
        self._requests[id_].start = start
        insort(self._waiting, id_, key=lambda one: self._requests[one].order)

    def gained(self, id_: int, ids: list[int]) -> None:
        self._requests[id_].generated += ids

    def ended(self, id_: int) -> None:
        """Any number of times."""
        self._requests.pop(id_, None)
        if id_ in self._waiting:
            self._waiting.remove(id_)

    def keep(self, id_: int) -> bool:
        """Return whether one that was dropped goes on later."""
        request = self._requests[id_]
        if not _resumes(request.sampling, begun=bool(request.generated)):
            return False
        self.hold(id_)
        return True

    def first(self) -> tuple[int, Demand] | None:
        """Return the first that waits, and what it takes now."""
        if not self._waiting:
            return None
        request = self._requests[self._waiting[0]]
        return self._waiting[0], demand(request.prompt, request.sampling, len(request.generated))

    def leave(self, id_: int) -> tuple[Prompt, Callable[[], ov_genai.GenerationHandle] | None]:
        """Have one wait no longer. Return how to add it to the library."""
        self._waiting.remove(id_)
        request = self._requests[id_]
        start, request.start = request.start, None
        return _rest(request), start

    def next(self) -> list[tuple[int, Prompt]]:
        """Those to be added to the library, which is empty now."""
        room = self._blocks
        found: list[tuple[int, Prompt]] = []
        for id_ in self._waiting:
            room -= self._most(self._requests[id_])
            if found and room < 0:
                break
            found.append((id_, _rest(self._requests[id_])))
        del self._waiting[: len(found)]
        return found

    def _most(self, request: _Request) -> int:
        """Blocks that it can ever hold."""
        tokens: int = request.prompt.ids.shape[1] + (request.prompt.asked or self._blocks * self._block)
        return min(-(-tokens // self._block) + 1, self._blocks) * max(request.sampling.beams, 1)


def demand(prompt: Prompt, sampling: Sampling, generated: int = 0) -> Demand:
    """Return what a request takes, of which `generated` tokens are known."""
    answer = prompt.asked or 0
    return Demand(
        prompt.ids.shape[1] + generated,
        max(answer - generated, 1) if answer else 0,
        sampling.num_assistant_tokens or _unsure_drafts(sampling, answer),
        stays=generated > 0 or not _resumes(sampling, begun=True),
    )


def _resumes(sampling: Sampling, *, begun: bool) -> bool:
    """Return whether the rest can be computed as if nothing had happened: not what depends on the answer so
    far by more than its tokens. `begun`: there is such an answer."""
    if sampling.echo and sampling.logprobs:
        return False
    penalties = sampling.frequency_penalty or sampling.presence_penalty
    return not begun or not (penalties or sampling.constraint or sampling.beams > 1)


def _unsure_drafts(sampling: Sampling, answer: int) -> int:
    """Return the most drafts of a request with a confidence threshold, as `Demand` has them.

    The library compares the threshold with log-probabilities, and stops after one draft without them."""
    return answer if sampling.logprobs else 1


def _rest(request: _Request) -> Prompt:
    prompt, generated = request.prompt, len(request.generated)
    if not generated:
        return prompt
    config = prompt.config
    config.max_new_tokens = max((prompt.asked or 0) - generated, 1)
    config.min_new_tokens = max(request.sampling.min_tokens - generated, 0)
    config.rng_seed = request.sampling.seed + generated  # not the numbers that chose the first tokens
    config.echo = False
    ids = ids_tensor([*prompt.ids.data[0].tolist(), *request.generated])
    return Prompt(ids, config, config.max_new_tokens)

"""Let short prompts go ahead of long ones, by cancelling the long ones and adding them again.

- What the library does: its scheduler reads prompts in the order in which they were added, and fills a step
  with the first. So a short prompt waits until a long one has been read, and no call pauses a request.
- The way around: the long ones are cancelled, added again behind the short one under another id, and find
  what they had read in the prefix cache. So this needs that cache.
- Seen: tests/engine/test_overtaking.py.
- Versions: OpenVINO GenAI 2026.4.1.
- It can go when a request has a priority.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.quirks.unwritten import Unwritten
from ovserve.engine.decoding.sequence import Sequence
from ovserve.engine.prefix_cache.model import PrefixCacheModel

FIRST_AGAIN = 1 << 62  # library ids of requests that are added again, above those of all clients


class Prompt(NamedTuple):
    """The arguments to add a request again."""

    ids: openvino.Tensor
    config: ov_genai.GenerationConfig
    asked: int | None  # tokens at most


class Overtaking:
    """Requests that can step aside: those without a token, by id."""

    def __init__(self, pipeline: ov_genai.ContinuousBatchingPipeline, unwritten: Unwritten) -> None:
        self._pipeline = pipeline
        self._unwritten = unwritten
        self._again = itertools.count(FIRST_AGAIN)
        self._prompts: dict[int, Prompt] = {}  # of requests without a token
        self.aside: list[int] = []  # requests that go on with the next step

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._prompts

    def keep(self, request_id: int, prompt: Prompt) -> None:
        """Remember how to add a request again."""
        self._prompts[request_id] = prompt

    def forget(self, request_id: int) -> None:
        """Drop a request that has a token, or has ended."""
        self._prompts.pop(request_id, None)

    def step_aside(
        self, in_the_way: Iterable[int], live: Mapping[int, Sequence], cancel: Callable[[Sequence], None]
    ) -> None:
        """Have the long prompts out of the way of those that are added before the next step."""
        if self.aside:
            return
        self.aside = [id_ for id_ in in_the_way if id_ in self._prompts]
        for id_ in self.aside:
            cancel(live[id_])

    def go_on(self, live: Mapping[int, Sequence], prefix: PrefixCacheModel | None) -> None:
        """Add those that stepped aside again."""
        for id_ in self.aside:
            if (sequence := live.get(id_)) is None:  # it was aborted meanwhile
                continue
            self.add_again(sequence, self._prompts[id_], prefix)
        self.aside.clear()

    def add_again(self, sequence: Sequence, prompt: Prompt, prefix: PrefixCacheModel | None) -> int | None:
        """Return the tokens that it finds in the prefix cache, if that is known.

        Raises `Unavailable` where `Unwritten.named` does, and then has changed nothing."""
        prompt = prompt._replace(ids=self._unwritten.named(prefix, prompt.ids, sequence.sampling))
        if sequence.id in self._prompts:  # what it has read is under that name
            self._prompts[sequence.id] = prompt
        sequence.library_id = next(self._again)
        sequence.handle = self._pipeline.add_request(sequence.library_id, prompt.ids, prompt.config)
        if prefix is None:
            return None
        beams = sequence.sampling.beams
        return prefix.add(sequence.library_id, prompt.ids.data.tobytes(), prompt.asked, beams)

"""Prompts that the prefix cache does not know, for requests that want the log-probability of each prompt
token; used by `continuous.py`.

What the cache has of a prompt is not computed again, so the library gives no log-probabilities for it, and
no option of a request leaves the cache out. But the library names cached blocks by 64-bit token ids, and
the model reads the lower 32 bits of an id. So a first id with a number of its own in the upper half is the
same token under a name that no other request has. Nothing else looks at the first id of a prompt: it has no
log-probability. `proven` shows it at each load, because another device or release may read ids in another
way.
"""

from __future__ import annotations

import itertools

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.prefix_cache.model import PrefixCacheModel

UPPER = 1 << 32
PROBE_ID = (1 << 62) - 3  # not a client's request
PROBE = (2, 3, 5, 7, 11, 13)  # tokens of every vocabulary
TOLERANCE = 0.01


class Uncached:
    """Gives out names; each is used once in the life of an engine."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def renamed(self, ids: openvino.Tensor) -> openvino.Tensor:
        """The same prompt under a new name."""
        found = ids_tensor(ids.data[0])
        found.data[0, 0] += next(self._numbers) * UPPER
        return found

    def proven(
        self,
        pipeline: ov_genai.ContinuousBatchingPipeline,
        config: ov_genai.GenerationConfig,
        account: PrefixCacheModel | None,
    ) -> bool:
        """True if this pipeline, which is idle, computes a renamed prompt whole and to the same result.
        `config`: for one token, with the log-probabilities of the prompt."""
        plain = ids_tensor(PROBE)
        first, again = (_scores(pipeline, config, ids, account) for ids in (plain, self.renamed(plain)))
        return len(first) == len(again) == len(PROBE) + 1 and all(
            abs(a - b) < TOLERANCE for a, b in zip(first, again, strict=True)
        )


def _scores(
    pipeline: ov_genai.ContinuousBatchingPipeline,
    config: ov_genai.GenerationConfig,
    ids: openvino.Tensor,
    account: PrefixCacheModel | None,
) -> list[float]:
    handle = pipeline.add_request(PROBE_ID, ids, config)
    tokens: list[int] = []
    scores: list[float] = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        if handle.can_read():
            for part in handle.read().values():
                tokens += part.generated_ids
                scores += part.generated_log_probs
    if account is not None:
        account.replay(ids.data.tobytes(), tokens[ids.shape[1] :], cut=False)
    return scores

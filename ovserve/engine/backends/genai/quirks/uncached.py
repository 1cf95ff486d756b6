"""Compute a prompt whole for requests that want the log-probability of each prompt token.

- What the library does: what the prefix cache has of a prompt is not computed again, so there are no
  log-probabilities for it, and no option of a request leaves the cache out.
- The way around: the library names cached blocks by a hash of 64-bit token ids, and the model reads the lower
  32 bits of an id. So a first id with a number of its own in the upper half is the same token under a name
  that no other request has. Nothing else reads the first id of a prompt: it has no log-probability.
- Seen: tests/engine/test_uncached.py. The hash is that of `Sequence::get_hash`,
  https://github.com/openvinotoolkit/openvino.genai/blob/master/src/cpp/src/sequence_group.cpp
  (read 2026-11-22)
- Versions: OpenVINO GenAI 2026.4.1. `proven` tries it at each load, because another device or release may
  read ids in another way.
- It can go when a request can leave the prefix cache out.
"""

from __future__ import annotations

import itertools

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.prefix_cache.kv_blocks import UPPER
from ovserve.engine.prefix_cache.model import PrefixCacheModel
from ovserve.errors import InvalidArgument
from ovserve.llm.request import Sampling

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


def compute_whole(uncached: Uncached | None, ids: openvino.Tensor, sampling: Sampling) -> openvino.Tensor:
    """Return ids of which the prefix cache has nothing. `uncached` None: this pipeline was not proven."""
    if uncached is None:
        raise InvalidArgument(
            "logprobs with echo: this graph caches prefixes (enable_prefix_caching), and its engine "
            "cannot compute the log-probabilities of what it has cached",
            param="logprobs",
        )
    if sampling.repetition_penalty != 1.0 and sampling.max_tokens != 0:
        raise InvalidArgument(  # the library looks ids up among its logits, and would raise in a step
            f"repetition_penalty: {sampling.repetition_penalty:g} is not possible together with echo and "
            "logprobs where prefixes are cached (enable_prefix_caching). Send 1, or max_tokens 0",
            param="repetition_penalty",
        )
    return uncached.renamed(ids)


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

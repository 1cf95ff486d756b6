"""A draft model that proposes tokens greedily, for the target model to verify (`draft_models_path`).

Its KV cache has the same blocks as the target's, with the same numbers: a sequence has one block table for
both. So a draft is preempted with its sequence, and shares the hits of the prefix cache. Both models prefill
a prompt in the same steps.

Where drafting paused, such as next to many requests, the draft model computes what it missed before it
proposes again. A block that was cached meanwhile has no keys and values of the draft. That makes wrong
proposals and no wrong answers, because a token is accepted only where the target model samples the same one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

from ovserve.engine.host.memory import BYTES_PER_GIB
from ovserve.engine.protocol.specs import DraftSpec, PagedTextSpec
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.options import properties, sentence
from ovserve.kinds.text.worker.paged.model import FILE, PagedModel
from ovserve.kinds.text.worker.paged.runner import Floats
from ovserve.kinds.text.worker.paged.running import Running, ScheduledSequence, StepTokens, bind_tokens

FIELD = "draft_models_path"


class DraftModel:
    def __init__(self, spec: PagedTextSpec, draft: DraftSpec, tiles: bool) -> None:
        """Read and compile it; `allocate` follows. Raises LoadError."""
        file = Path(draft.model_path) / FILE
        try:
            self._model = PagedModel(
                file, spec.device, properties(spec), tiles, (draft.cache_size or 0) * BYTES_PER_GIB
            )
            self._model.compile()
        except RuntimeError as error:
            raise LoadError(sentence(error), field=FIELD) from error
        except LoadError as error:
            raise LoadError(f"the draft model: {error.reason}", field=error.field) from error
        if self._model.state_bytes:
            raise LoadError("a draft model with linear attention is not possible", field=FIELD)
        self.block_bytes = self._model.block_bytes
        self.vocabulary = self._model.vocabulary
        self._tokens = spec.max_num_batched_tokens
        self._most = draft.max_num_seqs  # requests that have drafts in a step; None: all

    def allocate(self, blocks: int, vocabulary: int) -> None:
        """`vocabulary`: tokens of the target model, others are not proposed."""
        self._model.allocate(blocks)
        self.vocabulary = min(self.vocabulary, vocabulary)

    def prefill(self, scheduled: Iterable[ScheduledSequence]) -> None:
        """Prefill what the target model prefills in this step."""
        prompts = [item for item in scheduled if item.running.num_new_tokens > 1]
        parts = []
        for item in prompts:
            running, end = item.running, item.running.num_computed_tokens + item.tokens
            parts.append(self._part(running, running.ids[running.num_draft_computed_tokens : end], 0))
            running.num_draft_computed_tokens = end
        if parts:
            self._run(parts)

    def propose(self, counts: dict[Running, int]) -> dict[int, tuple[int, ...]]:
        """Return so many draft tokens for each request, by its id; their blocks are allocated."""
        counts = dict([*counts.items()][: self._most])
        proposals: dict[int, list[int]] = {running.id: [] for running in counts}
        following: dict[Running, array[int]] = {}
        late: list[StepTokens] = []
        for running in counts:
            tokens = running.ids[running.num_draft_computed_tokens :]
            if len(tokens) > self._tokens:
                late.append(self._part(running, tokens[: self._tokens], 0))
                running.num_draft_computed_tokens += self._tokens
            else:
                following[running] = tokens
        if late:
            self._run(late)
        while following:
            rows = self._run([self._part(running, tokens, 1) for running, tokens in following.items()])
            tokens_of_rows = rows[:, : self.vocabulary].argmax(1).tolist()
            for (running, tokens), token in zip([*following.items()], tokens_of_rows, strict=True):
                running.num_draft_computed_tokens += len(tokens)
                proposals[running.id].append(token)
                following[running] = array("q", [token])
                if len(proposals[running.id]) == counts[running]:
                    del following[running]
        return {id_: tuple(tokens) for id_, tokens in proposals.items()}

    @staticmethod
    def _part(running: Running, tokens: array[int], rows: int) -> StepTokens:
        return StepTokens(tokens, running.num_draft_computed_tokens, rows, running.block_table)

    def _run(self, parts: list[StepTokens]) -> Floats:
        tokens = sum(len(part.ids) for part in parts)
        runner = self._model.runner_for(
            tokens, are_decodes=tokens == len(parts) == sum(part.rows for part in parts)
        )
        bind_tokens(runner, parts)
        return runner.run(max(part.start + len(part.ids) for part in parts))


def most_drafts(running: Running) -> int:
    """Return how many tokens a draft model may propose."""
    most = 0 if running.model_drafts is None else running.model_drafts.most
    return most if running.remaining_tokens is None else min(most, running.remaining_tokens - 1)

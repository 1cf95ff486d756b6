"""The engine of many requests at a time: OpenVINO GenAI's ContinuousBatchingPipeline.

It runs in one thread, in the order add/abort, step, collect. `reservation.py` says which requests may be
added. What else the library makes necessary is in `quirks/`, a file each. `ignore_eos` ignores
`stop_token_ids` as well, so those are also searched for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.host.memory import memory
from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.messages import Accepted, Add, Failed, StepItem, Usage
from ovserve.errors import Internal, InvalidArgument, OvserveError, Unavailable
from ovserve.kinds.text.worker.decoding.sequence import Sequence, SpeculativeStats
from ovserve.kinds.text.worker.genai.loaded import LoadedPipeline
from ovserve.kinds.text.worker.genai.options import sentence
from ovserve.kinds.text.worker.genai.quirks.empty_read import read_parts
from ovserve.kinds.text.worker.genai.quirks.partial_prefill import may_be_partly_computed
from ovserve.kinds.text.worker.genai.request import generation_config
from ovserve.kinds.text.worker.genai.reservation import Demand
from ovserve.kinds.text.worker.genai.vision import tensors
from ovserve.llm.decoding import filled
from ovserve.llm.request import Sampling

_RUNNING = ov_genai.GenerationStatus.RUNNING


def scores_prompt(sampling: Sampling) -> bool:
    """Return whether a request wants the log-probability of each prompt token.

    The library finds these among the logits of a step by counting the rows of echoed prompts alone. So those
    of a prompt are another request's if one that does not echo precedes it; what follows does no harm.
    """
    return sampling.echo and sampling.logprobs


class GenAIEngine(LoadedPipeline):
    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        # A cancelled request leaves the library only with one more step.
        return bool(self._live) or self._pipeline.has_non_finished_requests()

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        """Return ids by request id; none where an image has to be measured and the room is limited."""
        if self._vision is None:
            return self._text.encode_prompts(requests)
        encoded: dict[int, openvino.Tensor] = {}
        for request in requests:
            if self._reservation.unbounded or self._vision.knows(request.images):
                with suppress(InvalidArgument):  # raised again when the request is added
                    encoded[request.id] = self._vision.encode_prompt(request)
        return encoded

    def can_schedule(self, request: Add, encoded: openvino.Tensor | None) -> bool:
        """Return whether a request may be added before the next step."""
        if encoded is None:
            return self._reservation.unbounded or not self.busy
        try:
            sampling, max_tokens = self._admit(request, encoded.shape[1])
        except OvserveError:
            return True  # it is raised again when the request is added
        return self._has_room(sampling, self._reservation.demand(sampling, encoded.shape[1], max_tokens))

    def _has_room(self, sampling: Sampling, demand: Demand) -> bool:
        if not self.busy:
            self._reservation.clear()
        return self._reservation.fits(demand) and not (scores_prompt(sampling) and self.busy)

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """`encoded`: the prompt's ids, from `encode_prompts`. Raises Unavailable for one that
        `can_schedule` would not let in."""
        if request.id in self._held:
            raise Internal(f"request {request.id} is already running")
        ids = self._encode_prompt(request) if encoded is None else encoded
        prompt_tokens = ids.shape[1]
        sampling, max_tokens = self._admit(request, prompt_tokens)
        if self._caches and scores_prompt(sampling):
            raise InvalidArgument(
                "logprobs with echo: this graph caches prefixes (enable_prefix_caching), and its engine "
                "cannot compute the log-probabilities of what it has cached",
                param="logprobs",
            )
        demand = self._reservation.demand(sampling, prompt_tokens, max_tokens)
        if not self._has_room(sampling, demand):
            raise Unavailable("the engine has no room for this request next to the others; try again later")
        stop_ids = self._text.stop_ids(sampling)
        if sampling.max_tokens == 0:  # a penalty has nothing to change
            sampling = msgspec.structs.replace(sampling, repetition_penalty=1.0)
        # Of no token but the prompt the library gives pieces, with what is in memory where it computed none.
        token_limit = max_tokens or int(sampling.max_tokens == 0)
        admitted = self._grammars.admitted
        config = generation_config(self._mode, sampling, token_limit, stop_ids, self.facts, admitted)
        handle = self._add_request(request, ids, config)
        hidden = self._text.hidden(sampling.skip_special_tokens)
        sequence = Sequence(handle, request.id, sampling, prompt_tokens, stop_ids, hidden)
        if self._mode != "plain":
            sequence.drafts = SpeculativeStats(self._mode, sampling, max_tokens)
        if sampling.echo:
            for branch in sequence.branches:
                branch.output.echo(self._text.prompt_text(request.prompt))
        self._live[request.id] = self._held[request.id] = sequence
        self._reservation.admitted(request.id, demand)
        return Accepted(request.id, prompt_tokens, max_tokens, None)

    def _encode_prompt(self, request: Add) -> openvino.Tensor:
        if self._vision is not None:
            return self._vision.encode_prompt(request)
        return self._text.encode_prompt(request)

    def _admit(self, request: Add, prompt_tokens: int) -> tuple[Sampling, int]:
        """Return the options in effect, and how many tokens may be generated (see `admit`)."""
        sampling = filled(self._mode, request.sampling)
        max_tokens = admit(prompt_tokens, self.facts.max_length, sampling, self._prompt_limit, self._mode)
        return self._reservation.fitted(sampling, prompt_tokens, max_tokens)

    def _add_request(
        self, request: Add, ids: openvino.Tensor, config: ov_genai.GenerationConfig
    ) -> ov_genai.GenerationHandle:
        try:
            if self._vision is not None:
                images = tensors(request.images)
                return self._pipeline.add_request(request.id, request.prompt, images, config)
            return self._pipeline.add_request(request.id, ids, config)
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(sentence(error)) from error

    def abort(self, request_id: int) -> None:
        if (sequence := self._live.pop(request_id, None)) is not None:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Cancel a request that is no longer live, as soon as its prompt is not half read."""
        if self._caches and may_be_partly_computed(sequence, self._held.values()):
            return
        sequence.handle.cancel()
        del self._held[sequence.id]
        self._reservation.cancelled(sequence.id)

    def step(self) -> None:
        for sequence in [one for id_, one in self._held.items() if id_ not in self._live]:
            self._leave(sequence)
        self._pipeline.step()
        self._reservation.stepped()

    def collect(self) -> list[StepItem | Failed]:
        changed: list[Sequence] = []
        rows: list[list[int]] = []
        items: list[StepItem | Failed] = []
        for sequence in self._live.values():
            if (parts := read_parts(sequence)) is not None:
                self._reservation.prefilled(sequence.id)
                sequence.process(parts)
                changed.append(sequence)
                rows += sequence.rows()
        texts = iter(self._text.decode(rows))
        for sequence in changed:
            items += self._advance(sequence, texts)
        if self._live and not changed and not self._pipeline.has_non_finished_requests():
            # Never seen; but a request the library forgot would keep this loop spinning for ever.
            items += [Failed(id_, "internal", "the engine lost this request") for id_ in self._live]
            self._live.clear()
            self._held.clear()
        return items

    def usage(self) -> Usage:
        metrics = self._pipeline.get_metrics()
        cache, size = metrics.cache_usage / 100, metrics.cache_size_in_bytes  # the library counts in percent
        if self._cache_grows and size:  # relate it to what the cache may become, not to what it is now
            cache *= size / (size + memory().available)
        # How much of a prompt is read is unknown before its first token.
        to_prefill = tuple((s.id, s.prompt_tokens) for s in self._live.values() if not s.generated)
        return Usage(metrics.requests, metrics.scheduled_requests, cache, size, to_prefill)

    def _advance(self, sequence: Sequence, texts: Iterator[str]) -> Iterable[StepItem | Failed]:
        if sequence.sampling.logprobs:
            for branch in sequence.branches:
                branch.output.add_logprobs(self._text.logprobs(branch.scored))
                branch.scored = []
        items = sequence.advance(texts)
        if not sequence.finished:
            return items
        alone = len(self._held) == 1
        del self._live[sequence.id]
        if sequence.handle.get_status() == _RUNNING:  # the stop was found by us, not by the library
            self._leave(sequence)
        else:
            del self._held[sequence.id]
            self._reservation.ended(sequence.id)
        if sequence.cache_full and not alone:
            why = "the KV cache was full, and this request had to give its place to others; try again"
            return [Failed(sequence.id, "unavailable", why)]
        if sequence.cache_full and not sequence.generated:
            return [Failed(sequence.id, "resource_exhausted", self._no_room_for(sequence))]
        return items

    def _no_room_for(self, sequence: Sequence) -> str:
        size = self._pipeline.get_metrics().cache_size_in_bytes
        return (
            f"The prompt has {sequence.prompt_tokens} tokens and does not fit into the engine's KV cache of "
            f"{size / 2**20:.1f} MiB. Shorten the prompt, or give the engine a larger cache_size."
        )

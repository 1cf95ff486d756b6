"""The engine of many requests at a time: OpenVINO GenAI's ContinuousBatchingPipeline.

It runs in one thread, in the order add/abort, step, collect. What the library makes necessary is in
`quirks/`, a file each. `ignore_eos` ignores `stop_token_ids` as well, so those are also searched for here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.options import sentence
from ovserve.engine.backends.genai.quirks.empty_read import read_parts
from ovserve.engine.backends.genai.quirks.left_out import OUTSIDE
from ovserve.engine.backends.genai.quirks.overtaking import Prompt
from ovserve.engine.backends.genai.quirks.uncached import compute_whole
from ovserve.engine.backends.genai.request import generation_config
from ovserve.engine.backends.genai.vision import tensors
from ovserve.engine.backends.genai.waiting import NOT_FIRST, WaitingPipeline
from ovserve.engine.decoding.echo_order import comes_first
from ovserve.engine.decoding.sequence import Part, Sequence
from ovserve.engine.decoding.speculation import drafts
from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.messages import Accepted, Add, Failed, StepItem, Usage
from ovserve.errors import Internal, InvalidArgument, Unavailable
from ovserve.llm.decoding import filled
from ovserve.llm.request import Sampling

_RUNNING = ov_genai.GenerationStatus.RUNNING


class GenAIEngine(WaitingPipeline):
    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        # A cancelled request leaves the library only with one more step.
        return bool(self._live) or self._pipeline.has_non_finished_requests()

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        return {} if self._vision else self._text.encode_prompts(requests)

    def can_schedule(self, encoded: openvino.Tensor) -> bool:
        """Return whether a prompt should be added before the next step."""
        if self._waiting_again or self._unwritten.waits(self._accounts.prefix, encoded):
            return False
        return self._may_fit(encoded.shape[1]) and self._accounts.can_schedule(encoded)

    def overtakes(self, encoded: openvino.Tensor) -> bool:
        """Return whether it may be added before the next step although that has no room."""
        return not self._waiting_again and self._unwritten.renames and self._accounts.overtakes(encoded)

    def can_schedule_first(self, encoded: openvino.Tensor) -> bool:
        """Return whether a prompt may be added now whose request `comes_first`."""
        return self._can_be_first(encoded.shape[1])

    def _can_be_first(self, prompt_tokens: int) -> bool:
        if self.busy and (self._waiting_again or not self._may_fit(prompt_tokens)):
            return False  # it would wait, and then not be the first
        return self._echo_order.can_schedule(prompt_tokens, idle=not self.busy)

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """`encoded`: the prompt's ids, from `encode_prompts`."""
        if request.id in self._live:
            raise Internal(f"request {request.id} is already running")
        if self._vision is not None:
            ids = self._vision.encode_prompt(request)
        else:
            ids = self._text.encode_prompt(request) if encoded is None else encoded
        prompt_tokens = ids.shape[1]
        sampling, max_tokens = self._admit(request, prompt_tokens)
        stop_ids = self._text.stop_ids(sampling)
        admitted = self._grammars.admitted
        first, idle = comes_first(sampling), not self.busy
        if first and not self._can_be_first(prompt_tokens):
            raise Unavailable(NOT_FIRST)
        if first and self._caches:
            given = compute_whole(self._uncached, ids, sampling)
        else:
            given = self._unwritten.named(self._accounts.prefix, ids, sampling)
            given = self._cut_alike.named(given, sampling)
        if sampling.max_tokens == 0:  # a penalty has nothing to change
            sampling = msgspec.structs.replace(sampling, repetition_penalty=1.0)
        # Of no token but the prompt the library gives pieces, with what is in memory where it computed none.
        asked = max_tokens or int(sampling.max_tokens == 0)
        config = generation_config(self._mode, sampling, asked, stop_ids, self.facts, admitted)
        ahead = not first and self._vision is None and not self.can_schedule(ids) and self.overtakes(ids)
        if ahead:
            self._overtaking.step_aside(self._accounts.in_the_way(), self._live, self._cancel)
        prompt = Prompt(given, config, asked or None)
        start = partial(self._add_request, request, given, config)
        waits = self._waits(prompt, sampling)
        handle = OUTSIDE if waits else start()
        hidden = self._text.hidden(sampling.skip_special_tokens)
        sequence = Sequence(handle, request.id, sampling, prompt_tokens, stop_ids, hidden)
        sequence.drafts = drafts(self._mode, sampling, max_tokens, lambda: ids.data[0].tolist())
        if sampling.echo:
            for branch in sequence.branches:
                branch.output.echo(self._text.prompt_text(request.prompt))
        self._live[request.id] = sequence
        self._remember(request.id, prompt, sampling, start if waits else None)
        if waits:
            return Accepted(request.id, prompt_tokens, max_tokens, None)
        cached = None
        if (prefix := self._accounts.prefix) is not None:
            cached = prefix.add(request.id, given.data.tobytes(), asked or None, sampling.beams)
            if not sampling.echo:  # whose log-probabilities would be lost with what the cache has
                self._overtaking.keep(request.id, prompt)
        unread, resumes = prompt_tokens - (cached or 0), request.id in self._overtaking
        self._accounts.admitted(
            request.id, prompt_tokens, unread, sampling.beams, ahead=ahead, resumes=resumes
        )
        self._echo_order.admitted(prompt_tokens, first=first, idle=idle)
        return Accepted(request.id, prompt_tokens, max_tokens, cached)

    def _admit(self, request: Add, prompt_tokens: int) -> tuple[Sampling, int]:
        """Return the options in effect, and how many tokens may be generated (see `admit`)."""
        sampling = filled(self._mode, request.sampling)
        max_tokens = admit(prompt_tokens, self.facts.max_length, sampling, self._prompt_limit, self._mode)
        if self._drafting is None:
            return sampling, max_tokens
        return self._drafting.fitted(sampling, prompt_tokens, max_tokens)

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
        if (sequence := self._live.get(request_id)) is None:
            return
        leaves = self._may_leave(sequence)
        del self._live[request_id]
        if leaves:
            self._cancel(sequence)
        else:
            self._fading.append(sequence)
        self._left(request_id, cancelled=True)

    def _may_leave(self, sequence: Sequence) -> bool:
        admitted = itertools.chain(self._fading, self._live.values())
        return self._unwritten.may_leave(self._accounts.prefix, sequence, admitted)

    def step(self) -> None:
        for sequence in list(self._fading):
            if self._may_leave(sequence):
                self._fading.remove(sequence)
                self._cancel(sequence)
        self._overtaking.go_on(self._live, self._accounts.prefix)
        self._let_in()
        self._left_before, self._leaving = self._leaving, False
        self._pipeline.step()
        self._accounts.stepped()
        if self._drafting is not None:
            self._drafting.stepped(empty=not self._pipeline.has_non_finished_requests())
        self._echo_order.stepped()

    def collect(self) -> list[StepItem | Failed]:
        changed: list[Sequence] = []
        rows: list[list[int]] = []
        read: list[tuple[Sequence, list[Part]]] = []
        gained: list[StepItem | Failed] = [*self._refused]
        self._refused.clear()
        alone = len(self._live) - self._waiting_again == 1 and not self._left_before and not self._fading
        for sequence in self._live.values():
            parts = read_parts(sequence)
            if parts is not None:
                self._overtaking.forget(sequence.id)
                read.append((sequence, parts))
        self._accounts.gained(read + self._read_fading())
        for sequence, parts in read:
            if self._dropped is not None and not parts and not alone:
                gained += self._drop(sequence, self._dropped)
                continue
            if self._dropped is not None and parts:
                ids = sequence.generated_ids(parts[0])
                self._dropped.gained(sequence.id, ids)
                if self._drafting is not None:
                    self._drafting.gained(sequence.id, len(ids))
            sequence.read(parts)
            changed.append(sequence)
            rows += sequence.rows()
        texts = iter(self._text.decode(rows))
        for sequence in changed:
            gained += self._advance(sequence, texts)
        lost = self._live and not changed and not self._waiting_again
        if lost and not self._pipeline.has_non_finished_requests():
            # Never seen; but a request the library forgot would keep this loop spinning for ever.
            for id_ in list(self._live):
                self._left(id_)
                self._ended(id_)
                del self._live[id_]
                gained.append(Failed(id_, "internal", "the engine lost this request"))
        return gained

    def _read_fading(self) -> list[tuple[Sequence, list[Part]]]:
        """Return what the step gave aborted requests, which only the model of the cache has to know."""
        if self._accounts.prefix is None:
            return []
        return [(one, parts) for one in self._fading if (parts := read_parts(one)) is not None]

    def usage(self) -> Usage:
        seen = self._pipeline.get_metrics()
        if seen.la_peak_pool_blocks:
            self._accounts.prefix = None  # linear attention: its cache has rules of its own
        cache, size = seen.cache_usage / 100, seen.cache_size_in_bytes  # the library counts in percent
        return Usage(seen.requests, seen.scheduled_requests, cache, size, self._accounts.unread)

    def _advance(self, sequence: Sequence, texts: Iterator[str]) -> Iterable[StepItem | Failed]:
        if sequence.sampling.logprobs:
            for branch in sequence.branches:
                branch.output.add_logprobs(self._text.logprobs(branch.scored))
                branch.scored = []
        items = sequence.advance(texts)
        if sequence.finished:
            del self._live[sequence.id]
            by_us = sequence.handle.get_status() == _RUNNING  # the stop was found by us, not by the library
            self._left(sequence.id, cancelled=by_us)
            if not by_us:
                self._ended(sequence.id)
            if sequence.cache_full and not sequence.generated:
                return [Failed(sequence.id, "resource_exhausted", self._no_room_for(sequence))]
            if by_us:
                self._cancel(sequence)
        return items

    def _no_room_for(self, sequence: Sequence) -> str:
        size = self._pipeline.get_metrics().cache_size_in_bytes
        return (
            f"The prompt has {sequence.prompt_tokens} tokens and does not fit into the engine's KV cache of "
            f"{size / 2**20:.1f} MiB. Shorten the prompt, or give the engine a larger cache_size."
        )

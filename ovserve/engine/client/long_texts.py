"""Texts to token ids and back: the engine handles short ones between two steps, a separate process long
ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ovserve.engine.client.calls import PendingCalls
from ovserve.engine.client.hosting.hosted import ModelProcess
from ovserve.engine.client.lengths import check_sizes
from ovserve.engine.client.tokenizer_process import LONG_IDS, TextProcess, long_texts
from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.messages import Detokenize, Tokenize
from ovserve.engine.protocol.specs import SCRIPT_SUFFIX, Spec, TextFacts
from ovserve.llm.request import GenerateRequest

ID_BYTES = 4  # bytes of a packed id


class Texts:
    def __init__(
        self,
        spec: Spec,
        pending: PendingCalls,
        engine: Callable[[], Awaitable[ModelProcess]],
        facts: Callable[[], TextFacts],
        ready_timeout: float,
    ) -> None:
        """`pending` holds the engine's calls, which `engine` waits for."""
        self._pending, self._engine, self._facts = pending, engine, facts
        self._counts_words = spec.model_path.endswith(SCRIPT_SUFFIX)  # two such processes share no ids
        self.process = TextProcess(spec, ready_timeout=ready_timeout)

    async def ids_of(self, request: GenerateRequest) -> list[bytes]:
        """Return the ids of its prompts, if those are too long to be tokenized between two steps.

        Raises ContextLengthExceeded, at once for a prompt that cannot fit by its size.
        """
        prompts, facts = request.prompts, self._facts()
        check_sizes(prompts, facts)
        if request.images or not long_texts(prompts):  # images need the text
            return []
        texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
        special = request.add_special_tokens
        packed: list[bytes] = await self.process.call(
            facts, lambda id_: Tokenize(id_, texts, special, packed=True)
        )
        for ids in packed:
            if facts.max_length is not None and len(ids) >= ID_BYTES * facts.max_length:
                admit(len(ids) // ID_BYTES, facts.max_length, request.sampling)  # raises
        given = iter(packed)
        return [next(given) if isinstance(prompt, str) else b"" for prompt in prompts]

    async def tokenize(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        all_ = tuple(texts)
        ids: list[list[int]]
        if long_texts(all_):
            ids = await self.process.call(self._facts(), lambda id_: Tokenize(id_, all_, add_special_tokens))
            return ids
        process = await self._engine()
        ids = await self._pending.call(process.send, lambda id_: Tokenize(id_, all_, add_special_tokens))
        return ids

    async def detokenize(
        self, rows: Sequence[Sequence[int]], skip_special_tokens: bool, escaped: bool = False
    ) -> list[str]:
        all_ = tuple(map(tuple, rows))
        texts: list[str]
        if sum(map(len, all_)) > LONG_IDS and not self._counts_words:
            texts = await self.process.call(
                self._facts(), lambda id_: Detokenize(id_, all_, skip_special_tokens, escaped)
            )
            return texts
        process = await self._engine()
        texts = await self._pending.call(
            process.send, lambda id_: Detokenize(id_, all_, skip_special_tokens, escaped)
        )
        return texts

    async def stop(self) -> None:
        await self.process.stop()

    async def rest(self) -> None:
        """End the process until the next long text."""
        await self.process.rest()

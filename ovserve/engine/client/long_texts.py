"""Texts to token ids and back: the engine handles short ones between two steps, another process long ones.

The tokenizer holds the engine's global lock, so a long text would stop all streams while it runs. Short ones
take a millisecond or two, and the engine tokenizes many prompts in one call. A call of the process that takes
too long is ended with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ovserve.engine.client.helper import HelperEnded, HelperProcess
from ovserve.engine.client.hosting.host import ModelProcess
from ovserve.engine.client.lengths import check_sizes
from ovserve.engine.client.pending_calls import PendingCalls, Question
from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.messages import Detokenize, Tokenize
from ovserve.engine.protocol.specs import SCRIPT_SUFFIX, Spec, TextFacts, TokenizerSpec
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.request import GenerateRequest

log = logging.getLogger(__name__)

LONG_TEXT = 32768  # characters in all texts of a request; some 2 ms
LONG_IDS = 8192  # the same for ids to detokenize
CALL_SECONDS = 60.0
MAX_CALLS = 64  # that wait or run
ID_BYTES = 4  # bytes of a packed id


def is_long(prompts: Iterable[str | tuple[int, ...]]) -> bool:
    """Return whether the prompts are too long to tokenize between two steps."""
    return sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) > LONG_TEXT


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
        self._calls = 0
        self.process = HelperProcess(
            lambda: TokenizerSpec(spec.model_path, spec.device, spec.properties, facts=facts()),
            "tokenises",
            "long texts cannot be tokenised",
            ready_timeout=ready_timeout,
        )

    async def ids_of(self, request: GenerateRequest) -> list[bytes]:
        """Return the ids of its prompts, if those are too long to be tokenized between two steps.

        Raises ContextLengthExceeded, at once for a prompt that cannot fit by its size.
        """
        prompts, facts = request.prompts, self._facts()
        check_sizes(prompts, facts)
        if request.images or not is_long(prompts):  # images need the text
            return []
        texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
        special = request.add_special_tokens
        packed: list[bytes] = await self._call_process(
            partial(Tokenize, texts=texts, add_special_tokens=special, packed=True)
        )
        for ids in packed:
            if facts.max_length is not None and len(ids) >= ID_BYTES * facts.max_length:
                admit(len(ids) // ID_BYTES, facts.max_length, request.sampling)  # raises
        encoded = iter(packed)
        return [next(encoded) if isinstance(prompt, str) else b"" for prompt in prompts]

    async def tokenize(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        call = self._call_process if is_long(texts) else self._call_engine
        make = partial(Tokenize, texts=tuple(texts), add_special_tokens=add_special_tokens)
        ids: list[list[int]] = await call(make)
        return ids

    async def detokenize(
        self, rows: Sequence[Sequence[int]], skip_special_tokens: bool, escaped: bool = False
    ) -> list[str]:
        long = sum(map(len, rows)) > LONG_IDS and not self._counts_words
        call = self._call_process if long else self._call_engine
        ids = tuple(map(tuple, rows))
        texts: list[str] = await call(
            partial(Detokenize, ids=ids, skip_special_tokens=skip_special_tokens, escaped=escaped)
        )
        return texts

    async def _call_engine(self, make: Callable[[int], Question]) -> Any:
        process = await self._engine()
        return await self._pending.call(process.send, make)

    async def _call_process(self, make: Callable[[int], Question]) -> Any:
        """Raises InvalidArgument for a text that cannot be tokenized or takes too long.

        Raises Unavailable when too many calls wait, or no process can be started.
        """
        if self._calls >= MAX_CALLS:
            raise Unavailable(f"{MAX_CALLS} long texts wait to be tokenised already", retry_after=1.0)
        self._calls += 1
        try:
            async with self.process.turn:
                try:
                    return await self.process.call(make, seconds=CALL_SECONDS)
                except HelperEnded:  # perhaps it was killed from outside; try once in a new one
                    return await self.process.call(make, seconds=CALL_SECONDS)
        except HelperEnded as error:
            raise Unavailable(error.message, retry_after=1.0) from error
        except TimeoutError:
            log.warning("a text took more than %g s to tokenise: rejected", CALL_SECONDS)
            raise InvalidArgument(f"the text takes more than {CALL_SECONDS:g} s to tokenise") from None
        finally:
            self._calls -= 1

"""What a servable tells of tokens without a graph run: tokenize, detokenize, tokenizer_info, count_tokens.

Made by `Servable.tokens`, used by `rest/`. Bodies in, answers out; the wire forms are `openai/`'s and
`anthropic/`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from ovserve.anthropic.messages import count_body, decode_count, to_render
from ovserve.calculators.resources import LlmResources
from ovserve.engine.client import EngineClient
from ovserve.openai import tokenize
from ovserve.openai.common import encode
from ovserve.openai.pictures import NOT_COUNTED, Pictures
from ovserve.openai.tokenize import Tokenizing


class Told(NamedTuple):
    body: bytes
    ignored: tuple[str, ...] = ()


class Tokens:
    """Holds a `lease` while it asks the engine, so that a reload waits for the answer."""

    def __init__(
        self,
        engine: EngineClient,
        resources: LlmResources,
        lease: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._engine = engine
        self._model = resources.model
        self._render = resources.render
        self._lease = lease

    async def tokenize(self, body: bytes) -> Told:
        asked = tokenize.decode_tokenize(body)
        with self._lease():
            return await self._tokenized(asked)

    async def _tokenized(self, asked: Tokenizing) -> Told:
        conversation = asked.conversation(self._model)
        texts = asked.texts if conversation is None else [await self._render(conversation)]
        rows = await self._engine.tokenize(texts, add_special_tokens=asked.add_special_tokens)
        if asked.body.text is not None:
            pad = self._engine.facts.pad_token_id
            return Told(tokenize.tokens_body([tokenize.fit(r, asked.body, pad) for r in rows]), asked.ignored)
        strings = None
        if asked.body.return_token_strs:
            strings = await self._engine.detokenize([[id_] for id_ in rows[0]])
        return Told(tokenize.counted_body(rows[0], strings, self._model.max_length), asked.ignored)

    async def detokenize(self, body: bytes) -> Told:
        request, rows, ignored = tokenize.decode_detokenize(body)
        skip = bool(request.skip_special_tokens)
        with self._lease():
            texts = await self._engine.detokenize(rows, skip_special_tokens=skip)
        return Told(tokenize.text_body(request, texts), ignored)

    def info(self) -> Told:
        facts, template = self._engine.facts, self._model.template
        info = tokenize.TokenizerInfo(
            tokenizer_class=facts.architecture or "unknown",
            bos_token=facts.bos_token or None,
            eos_token=facts.eos_token or None,
            pad_token=facts.pad_token or None,
            add_bos_token=facts.add_bos_token,
            vocab_size=facts.vocab_size,
            model_max_length=self._model.max_length,
            chat_template=template.source if template is not None else None,
        )
        return Told(encode(info))

    async def count(self, body: bytes) -> Told:
        """Anthropic's count_tokens: of the prompt that the same body would make."""
        decoded = decode_count(body)
        made = to_render(decoded, self._model, Pictures(NOT_COUNTED))
        with self._lease():
            prompt = await self._render(made.conversation)
            (ids,) = await self._engine.tokenize([prompt], add_special_tokens=False)
        return Told(count_body(len(ids)), tuple(sorted({*decoded.ignored, *made.ignored})))

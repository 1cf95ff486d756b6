"""Token operations of a graph with an encoder, without a graph run: tokenize, detokenize, tokenizer_info."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ovserve.admission.limits import Limits
from ovserve.api.openai import tokenize
from ovserve.api.openai.common import encode
from ovserve.calculators.encoder_resource import EncoderResource
from ovserve.calculators.payload import HttpPayload
from ovserve.errors import InvalidArgument, NotFound
from ovserve.serving.token_checks import TokenizeResult, check_count, check_size


class EncoderTokens:
    """Holds a `lease` while the engine works, so that a reload waits for the answer."""

    def __init__(
        self, encoder: EncoderResource, lease: Callable[[], AbstractContextManager[None]], limits: Limits
    ) -> None:
        self._encoder, self._lease, self._limits = encoder, lease, limits

    async def tokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        with self._lease():
            asked = await self._encoder.bodies.run(large, tokenize.decode_tokenize, body)
            if asked.body.messages is not None:
                raise InvalidArgument(
                    "messages: this model has no chat template; use prompt", param="messages"
                )
            texts = asked.texts
            check_size(texts, self._limits, asked.param)
            rows = await self._encoder.tokenize(texts, add_special_tokens=asked.add_special_tokens)
            facts = self._encoder.model
            if asked.body.text is not None:
                fitted = [tokenize.fit(row, asked.body, facts.pad_token_id) for row in rows]
                return TokenizeResult(tokenize.tokens_body(fitted), asked.ignored)
            strings = None
            if asked.body.return_token_strs:
                strings = await self._encoder.token_texts(rows[0])
        return TokenizeResult(tokenize.counted_body(rows[0], strings, facts.max_length), asked.ignored)

    async def detokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        with self._lease():
            request, rows, ignored = await self._encoder.bodies.run(large, tokenize.decode_detokenize, body)
            check_count(rows, self._limits)
            skip = bool(request.skip_special_tokens)
            texts = await self._encoder.detokenize(rows, skip_special_tokens=skip)
        return TokenizeResult(tokenize.text_body(request, texts), ignored)

    def info(self) -> TokenizeResult:
        facts = self._encoder.model
        info = tokenize.TokenizerInfo(
            tokenizer_class=facts.architecture or "unknown",
            bos_token=facts.bos_token or None,
            eos_token=facts.eos_token or None,
            pad_token=None,
            add_bos_token=bool(facts.bos_token),
            vocab_size=facts.vocab_size,
            model_max_length=facts.max_length,
            chat_template=None,
        )
        return TokenizeResult(encode(info))

    async def count_response(self, payload: HttpPayload) -> TokenizeResult:
        """The prompt of a response, which needs a chat template too."""
        raise NotFound("this model has no chat template, so it answers no responses")

    async def count(self, body: bytes, large: bool = False) -> TokenizeResult:
        """Anthropic's count_tokens, which needs a chat template."""
        raise NotFound("this model has no chat template, so it counts no messages")

"""Token operations of a servable without a graph run: tokenize, detokenize, tokenizer_info, count_tokens and
responses/input_tokens.

It takes bodies and returns answers; `api/openai/` and `api/anthropic/` define the wire forms.

Token operations of a graph with an encoder, without a graph run: tokenize, detokenize, tokenizer_info.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

from ovserve.api.anthropic.messages import count_body, decode_count, to_render
from ovserve.api.openai import tokenize
from ovserve.api.openai.common import encode, unread_variables
from ovserve.api.openai.logprobs import NOT_COUNTED, pictures_to_count
from ovserve.api.openai.responses.request import InputTokens
from ovserve.api.openai.tokenize import Tokenizing
from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.text import TextClient
from ovserve.errors import InvalidArgument, NotFound
from ovserve.kinds.encoders.resource import EncoderResource
from ovserve.kinds.payload import HttpPayload
from ovserve.kinds.text.resource import ENDPOINTS, LlmResources, encoded, parse
from ovserve.llm.images import ImageSource, texts_between
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.chat_template import EncodedConversation
from ovserve.llm.request import FileSource
from ovserve.serving.servable import Servable


class TokenizeResult(NamedTuple):
    body: bytes
    ignored: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()  # how messages were rearranged for the chat template


def check_size(texts: Sequence[str], limits: Limits, param: str) -> None:
    """Raises InvalidArgument for more text than --max_tokenize_bytes."""
    most = limits.max_tokenize_bytes
    size = sum(map(len, texts))
    if size <= most:
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > most:
        raise InvalidArgument(
            f"{param}: expected at most {most} bytes of text (--max_tokenize_bytes), got at least {size}",
            param=param,
        )


def check_count(rows: Sequence[Sequence[int]], limits: Limits) -> None:
    """Raises InvalidArgument for more ids than --max_detokenize_tokens."""
    count, most = sum(map(len, rows)), limits.max_detokenize_tokens
    if count > most:
        raise InvalidArgument(
            f"tokens: expected at most {most} ids (--max_detokenize_tokens), got {count}", param="tokens"
        )


class EncoderTokens:
    """Holds a `lease` while the engine works, so that a reload waits for the answer."""

    def __init__(
        self, encoder: EncoderResource, lease: Callable[[], AbstractContextManager[None]], limits: Limits
    ) -> None:
        self._encoder, self._lease, self._limits = encoder, lease, limits

    async def tokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        with self._lease():
            request = await self._encoder.bodies.run(large, tokenize.decode_tokenize, body)
            if request.body.messages is not None:
                raise InvalidArgument(
                    "messages: this model has no chat template; use prompt", param="messages"
                )
            texts = request.texts
            check_size(texts, self._limits, request.param)
            rows = await self._encoder.tokenize(texts, add_special_tokens=request.add_special_tokens)
            facts = self._encoder.model
            if request.body.text is not None:
                fitted = [tokenize.fit(row, request.body, facts.pad_token_id) for row in rows]
                return TokenizeResult(tokenize.tokens_body(fitted), request.ignored)
            strings = None
            if request.body.return_token_strs:
                strings = await self._encoder.token_texts(rows[0])
        return TokenizeResult(tokenize.counted_body(rows[0], strings, facts.max_length), request.ignored)

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


class RenderedPrompt(NamedTuple):
    """The prompt of a request as the engine would get it; `pieces` are the texts of its tokens."""

    prompt: str
    ids: list[int]
    pieces: list[str]
    ignored: tuple[str, ...]
    adapted: tuple[str, ...]  # how messages were rearranged for the chat template


class Tokens:
    """Holds a `lease` while the engine works, so that a reload waits for the answer."""

    def __init__(
        self,
        engine: TextClient,
        resources: LlmResources,
        lease: Callable[[], AbstractContextManager[None]] = nullcontext,
        limits: Limits | None = None,
    ) -> None:
        self._engine = engine
        self._model = resources.model
        self._render = resources.render
        self._media = resources.media
        self._with_files = resources.with_files
        self._bodies = resources.bodies
        self._lease = lease
        self._limits = limits or Limits()

    async def tokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        with self._lease():
            request, conversation = await self._bodies.run(large, _read_tokenize, body, self._model)
            return await self._tokenized(request, conversation)

    async def _tokenized(
        self, request: Tokenizing, conversation: EncodedConversation | None
    ) -> TokenizeResult:
        texts = request.texts if conversation is None else [await self._render(conversation)]
        check_size(texts, self._limits, request.param)
        rows = await self._engine.tokenize(texts, add_special_tokens=request.add_special_tokens)
        if request.body.text is not None:
            pad = self._engine.facts.pad_token_id
            fitted = [tokenize.fit(r, request.body, pad) for r in rows]
            return TokenizeResult(tokenize.tokens_body(fitted), request.ignored)
        strings = None
        if request.body.return_token_strs:
            strings = await self._engine.token_texts(rows[0])
        counted = tokenize.counted_body(rows[0], strings, self._model.max_length)
        return TokenizeResult(counted, request.ignored, () if conversation is None else conversation.adapted)

    async def detokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        with self._lease():
            request, rows, ignored = await self._bodies.run(large, tokenize.decode_detokenize, body)
            check_count(rows, self._limits)
            skip = bool(request.skip_special_tokens)
            texts = await self._engine.detokenize(rows, skip_special_tokens=skip)
        return TokenizeResult(tokenize.text_body(request, texts), ignored)

    def info(self) -> TokenizeResult:
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
        return TokenizeResult(encode(info))

    async def count(self, body: bytes, large: bool = False) -> TokenizeResult:
        """Handle Anthropic's count_tokens: count the prompt that the same body would make."""
        with self._lease():
            decoded = await self._bodies.run(large, _read_count, body, self._model)
            conversation, sources, files, ignored = decoded
            prompt = await self._render(await self._with_files(conversation, files))
            count = await self._count(prompt, sources, conversation.param)
        return TokenizeResult(count_body(count), ignored, conversation.adapted)

    async def count_response(self, payload: HttpPayload) -> TokenizeResult:
        """Count the prompt of a responses body, its history included."""
        request = await self._bodies.run(
            payload.head.large, parse, payload.endpoint, payload.body, self._model, payload.context
        )
        assert request.conversation is not None, "a response has one"
        if request.image_sources and self._model.vision is not None and self._model.vision.tokens is None:
            param = request.image_sources[0].param
            raise InvalidArgument(f"{param}: {NOT_COUNTED}", param=param)
        with self._lease():
            conversation = await self._with_files(request.conversation, request.file_sources)
            prompt = await self._render(conversation)
            count = await self._count(prompt, request.image_sources, request.conversation.param)
        ignored = request.presentation.ignored_params
        return TokenizeResult(encode(InputTokens(count)), ignored, conversation.adapted)

    async def rendered(self, payload: HttpPayload) -> RenderedPrompt:
        """Return the prompt that a body makes, without generating. Images stay the tags of the template."""
        if payload.endpoint not in ENDPOINTS:
            raise NotFound(f"{payload.endpoint!r} has no prompt; those that have: {', '.join(ENDPOINTS)}")
        with self._lease():
            request = await self._bodies.run(
                payload.head.large, parse, payload.endpoint, payload.body, self._model
            )
            prompt = request.prompts[0] if request.prompts else ""
            adapted: tuple[str, ...] = ()
            if request.conversation is not None:
                conversation = await self._with_files(request.conversation, request.file_sources)
                prompt, adapted = await self._render(conversation), conversation.adapted
            if isinstance(prompt, str):
                check_size([prompt], self._limits, "body")
                special = request.add_special_tokens
                [ids] = await self._engine.tokenize([prompt], add_special_tokens=special)
            else:
                ids = list(prompt)
                [prompt] = await self._engine.detokenize([ids])
            pieces = await self._engine.token_texts(ids)
        return RenderedPrompt(prompt, ids, pieces, request.presentation.ignored_params, adapted)

    async def _count(self, prompt: str, sources: Sequence[ImageSource], param: str) -> int:
        """Count as the engine does (`VisionInput.encode_prompt`); images are loaded for their size."""
        vision, tokens = self._model.vision, 0
        if vision is not None:
            vision.check(prompt, len(sources), param)
            tokens += vision.added
            for image in await self._media.load(sources):
                assert vision.tokens is not None, "otherwise no image was accepted"
                tokens += vision.tokens.of(image.width, image.height)
        check_size([prompt], self._limits, param)
        rows = await self._engine.tokenize(texts_between(prompt, len(sources)), add_special_tokens=False)
        return tokens + sum(map(len, rows))


def _read_tokenize(body: bytes, model: ModelContext) -> tuple[Tokenizing, EncodedConversation | None]:
    """Return the checked body without its messages, and the conversation to render."""
    request = tokenize.decode_tokenize(body)
    conversation = request.conversation(model)
    if conversation is None:
        return request, None
    variables = unread_variables(request.body.chat_template_kwargs, model)
    ignored = tuple(sorted([*request.ignored, *variables]))
    return replace(request.without_messages(), ignored=ignored), encoded(conversation)


class _Counted(NamedTuple):
    conversation: EncodedConversation
    images: list[ImageSource]
    files: list[FileSource]
    ignored: tuple[str, ...]


def _read_count(body: bytes, model: ModelContext) -> _Counted:
    decoded = decode_count(body)
    images = pictures_to_count(model)
    rendered = to_render(decoded, model, images)
    ignored = tuple(sorted({*decoded.ignored, *rendered.ignored}))
    return _Counted(encoded(rendered.conversation), images.sources, images.files, ignored)


def tokens_of(servable: Servable) -> Tokens | EncoderTokens:
    """Return the tokenizer of the first model of a graph that has one. Raises NotFound without any."""
    for packet, engine in servable.engines.items():
        resource = servable.side_packets[packet]
        if isinstance(engine, TextClient) and isinstance(resource, LlmResources):
            return Tokens(engine, resource, servable.lease, servable.limits)
        if isinstance(resource, EncoderResource):
            return EncoderTokens(resource, servable.lease, servable.limits)
    raise NotFound(f"the graph of {servable.name!r} has no tokenizer")

"""Token operations of a servable without a graph run: tokenize, detokenize, tokenizer_info, count_tokens and
responses/input_tokens.

It takes bodies and returns answers; `api/openai/` and `api/anthropic/` define the wire forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import structs

from ovserve.api.anthropic.messages import count_body, decode_count, to_render
from ovserve.api.openai import tokenize
from ovserve.api.openai.common import encode, unread_variables
from ovserve.api.openai.logprobs import NOT_COUNTED, pictures_to_count
from ovserve.api.openai.responses.request import InputTokens
from ovserve.api.openai.tokenize import Tokenizing
from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import TextFacts
from ovserve.errors import InvalidArgument, NotFound
from ovserve.kinds.encoders.resource import EncoderResource
from ovserve.kinds.encoders.spec import EncoderFacts
from ovserve.kinds.payload import HttpPayload
from ovserve.kinds.text.resource import ENDPOINTS, LlmResources, encoded, parse
from ovserve.llm.chat_template import EncodedConversation
from ovserve.llm.images import ImageSource, texts_between
from ovserve.llm.model import ModelContext
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
        raise InvalidArgument.at(
            param, f"expected at most {most} bytes of text (--max_tokenize_bytes), got at least {size}"
        )


def check_count(rows: Sequence[Sequence[int]], limits: Limits) -> None:
    """Raises InvalidArgument for more ids than --max_detokenize_tokens."""
    count, most = sum(map(len, rows)), limits.max_detokenize_tokens
    if count > most:
        raise InvalidArgument.at(
            "tokens", f"expected at most {most} ids (--max_detokenize_tokens), got {count}"
        )


class RenderedPrompt(NamedTuple):
    """The prompt of a request as the engine would get it; `pieces` are the texts of its tokens."""

    prompt: str
    ids: list[int]
    pieces: list[str]
    ignored: tuple[str, ...]
    adapted: tuple[str, ...]  # how messages were rearranged for the chat template


class Tokens:
    """The tokenizer of a language model, with its chat template, or of an encoder.

    Holds a `lease` while the engine works, so that a reload waits for the answer.
    """

    def __init__(
        self,
        engine: TextClient | EncoderResource[Any],
        resource: LlmResources | EncoderResource[Any],
        lease: Callable[[], AbstractContextManager[None]],
        limits: Limits,
    ) -> None:
        self._engine, self._bodies = engine, resource.bodies
        self._llm = resource if isinstance(resource, LlmResources) else None
        self._lease, self._limits = lease, limits

    @property
    def _facts(self) -> TextFacts | EncoderFacts:
        return self._engine.model if isinstance(self._engine, EncoderResource) else self._engine.facts

    def _language_model(self, lack: str) -> LlmResources:
        """Return the language model. Raises NotFound for an encoder; `lack` says what it does not do."""
        if self._llm is None:
            raise NotFound(f"this model has no chat template, so it {lack}")
        return self._llm

    @property
    def _max_length(self) -> int | None:
        return self._facts.max_length if self._llm is None else self._llm.model.max_length

    async def tokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        llm = self._llm
        with self._lease():
            model = None if llm is None else llm.model
            request, conversation = await self._bodies.run(large, _read_tokenize, body, model)
            texts = request.texts
            if llm is not None and conversation is not None:
                texts = [await llm.render(conversation)]
            check_size(texts, self._limits, request.param)
            rows = await self._engine.tokenize(texts, add_special_tokens=request.add_special_tokens)
            if request.body.text is not None:
                pad = self._facts.pad_token_id
                fitted = [tokenize.fit(row, request.body, pad) for row in rows]
                ids = tokenize.TokenIds([*(fitted[0] if len(fitted) == 1 else fitted)])
                return TokenizeResult(encode(ids), request.ignored)
            strings = None
            if request.body.return_token_strs:
                strings = await self._engine.token_texts(rows[0])
        counted = tokenize.CountedTokens(
            count=len(rows[0]), max_model_len=self._max_length, tokens=rows[0], token_strs=strings
        )
        adapted = () if conversation is None else conversation.adapted
        return TokenizeResult(encode(counted), request.ignored, adapted)

    async def detokenize(self, body: bytes, large: bool = False) -> TokenizeResult:
        with self._lease():
            request, rows, ignored = await self._bodies.run(large, tokenize.decode_detokenize, body)
            check_count(rows, self._limits)
            skip = bool(request.skip_special_tokens)
            texts = await self._engine.detokenize(rows, skip_special_tokens=skip)
        several = bool(request.tokens) and isinstance(request.tokens[0], list)
        return TokenizeResult(encode(tokenize.DetokenizedText(texts if several else texts[0])), ignored)

    def info(self) -> TokenizeResult:
        facts, template = self._facts, None if self._llm is None else self._llm.model.template
        pad_token, adds_bos = None, bool(facts.bos_token)
        if isinstance(facts, TextFacts):
            pad_token, adds_bos = facts.pad_token or None, facts.add_bos_token
        info = tokenize.TokenizerInfo(
            tokenizer_class=facts.architecture or "unknown",
            bos_token=facts.bos_token or None,
            eos_token=facts.eos_token or None,
            pad_token=pad_token,
            add_bos_token=adds_bos,
            vocab_size=facts.vocab_size,
            model_max_length=self._max_length,
            chat_template=template.source if template is not None else None,
        )
        return TokenizeResult(encode(info))

    async def count(self, body: bytes, large: bool = False) -> TokenizeResult:
        """Handle Anthropic's count_tokens: count the prompt that the same body would make."""
        llm = self._language_model("counts no messages")
        with self._lease():
            decoded = await self._bodies.run(large, _read_count, body, llm.model)
            conversation, sources, files, ignored = decoded
            prompt = await llm.render(await llm.with_files(conversation, files))
            count = await self._count(llm, prompt, sources, conversation.param)
        return TokenizeResult(count_body(count), ignored, conversation.adapted)

    async def count_response(self, payload: HttpPayload) -> TokenizeResult:
        """Count the prompt of a responses body, its history included."""
        llm = self._language_model("answers no responses")
        vision = llm.model.vision
        request = await self._bodies.run(
            payload.head.large, parse, payload.endpoint, payload.body, llm.model, payload.context
        )
        assert request.conversation is not None, "a response has one"
        if request.image_sources and vision is not None and vision.tokens is None:
            raise InvalidArgument.at(request.image_sources[0].param, NOT_COUNTED)
        with self._lease():
            conversation = await llm.with_files(request.conversation, request.file_sources)
            prompt = await llm.render(conversation)
            count = await self._count(llm, prompt, request.image_sources, request.conversation.param)
        ignored = request.presentation.ignored_params
        return TokenizeResult(encode(InputTokens(count)), ignored, conversation.adapted)

    async def rendered(self, payload: HttpPayload) -> RenderedPrompt:
        """Return the prompt that a body makes, without generating. Images stay the tags of the template."""
        if payload.endpoint not in ENDPOINTS:
            raise NotFound(f"{payload.endpoint!r} has no prompt; those that have: {', '.join(ENDPOINTS)}")
        llm = self._language_model("renders no prompts")
        with self._lease():
            request = await self._bodies.run(
                payload.head.large, parse, payload.endpoint, payload.body, llm.model
            )
            prompt = request.prompts[0] if request.prompts else ""
            adapted: tuple[str, ...] = ()
            if request.conversation is not None:
                conversation = await llm.with_files(request.conversation, request.file_sources)
                prompt, adapted = await llm.render(conversation), conversation.adapted
            if isinstance(prompt, str):
                check_size([prompt], self._limits, "body")
                special = request.add_special_tokens
                [ids] = await self._engine.tokenize([prompt], add_special_tokens=special)
            else:
                ids = list(prompt)
                [prompt] = await self._engine.detokenize([ids])
            pieces = await self._engine.token_texts(ids)
        return RenderedPrompt(prompt, ids, pieces, request.presentation.ignored_params, adapted)

    async def _count(self, llm: LlmResources, prompt: str, sources: Sequence[ImageSource], param: str) -> int:
        """Count as the engine does (`VisionInput.encode_prompt`); images are loaded for their size."""
        vision, tokens = llm.model.vision, 0
        if vision is not None:
            vision.check(prompt, len(sources), param)
            tokens += vision.added
            for image in await llm.media.load(sources):
                assert vision.tokens is not None, "otherwise no image was accepted"
                tokens += vision.tokens.of(image.width, image.height)
        check_size([prompt], self._limits, param)
        rows = await self._engine.tokenize(texts_between(prompt, len(sources)), add_special_tokens=False)
        return tokens + sum(map(len, rows))


def _read_tokenize(body: bytes, model: ModelContext | None) -> tuple[Tokenizing, EncodedConversation | None]:
    """Return the checked body without its messages, and the conversation to render. `model`: None for an
    encoder."""
    request = tokenize.decode_tokenize(body)
    if model is None:
        if request.body.messages is not None:
            raise InvalidArgument.at("messages", "this model has no chat template; use prompt")
        return request, None
    conversation = request.conversation(model)
    if conversation is None:
        return request, None
    variables = unread_variables(request.body.chat_template_kwargs, model)
    ignored = tuple(sorted([*request.ignored, *variables]))
    left = structs.replace(request.body, messages=[], tools=None)  # that there were messages still shows
    return replace(request, body=left, ignored=ignored), encoded(conversation)


def _read_count(
    body: bytes, model: ModelContext
) -> tuple[EncodedConversation, list[ImageSource], list[FileSource], tuple[str, ...]]:
    decoded = decode_count(body)
    images = pictures_to_count(model)
    rendered = to_render(decoded, model, images)
    ignored = tuple(sorted({*decoded.ignored, *rendered.ignored}))
    return encoded(rendered.conversation), images.sources, images.files, ignored


def tokens_of(servable: Servable) -> Tokens:
    """Return the tokenizer of the first model of a graph that has one. Raises NotFound without any."""
    for packet, engine in servable.engines.items():
        resource = servable.side_packets[packet]
        if isinstance(engine, TextClient) and isinstance(resource, LlmResources):
            return Tokens(engine, resource, servable.lease, servable.limits)
        if isinstance(resource, EncoderResource):
            return Tokens(resource, resource, servable.lease, servable.limits)
    raise NotFound(f"the graph of {servable.name!r} has no tokenizer")

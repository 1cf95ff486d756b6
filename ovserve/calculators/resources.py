"""The side packet of LLM nodes: the engine and what is known of its model. Built by `serving/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ovserve.llm.files import FileSource, with_files
from ovserve.llm.images import Image, ImageSource
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.chat_template import ChatTemplate, Conversation, EncodedConversation
from ovserve.llm.request import Delta, GenerateRequest
from ovserve.sandbox.bodies import Bodies


class DeltaStream(Protocol):
    """One answer under way. Ends with a delta that has a finish_reason, or with an exception."""

    async def next(self) -> Delta: ...

    def abort_if_running(self) -> None: ...


class Generator(Protocol):
    """What the executor needs of an engine (engine.client.EngineClient in the server)."""

    async def generate(self, request: GenerateRequest) -> DeltaStream: ...

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]: ...

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]: ...


class Renderer(Protocol):
    """What renders chat templates (templating.pool.TemplatePool in the server)."""

    async def render(
        self, template: ChatTemplate, conversation: Conversation | EncodedConversation
    ) -> str: ...


class ImageLoader(Protocol):
    """What gets and decodes the images and files of a request (media.loader.Media in the server)."""

    async def load(self, sources: Sequence[ImageSource]) -> tuple[Image, ...]: ...

    async def read(self, sources: Sequence[FileSource]) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class LlmResources:
    engine: Generator
    model: ModelContext
    templates: Renderer
    media: ImageLoader
    fingerprint: str = ""  # of model, options and releases, for answers that carry it
    bodies: Bodies = field(default_factory=Bodies)

    async def render(self, conversation: Conversation | EncodedConversation) -> str:
        """The prompt, by this model's template. Raises InvalidArgument in the template's words."""
        assert self.model.template is not None, "it made the conversation"
        return await self.templates.render(self.model.template, conversation)

    async def with_files(
        self, conversation: Conversation | EncodedConversation, files: Sequence[FileSource]
    ) -> Conversation | EncodedConversation:
        """With the text of the files in their places. Raises InvalidArgument for one that has none."""
        if not files:
            return conversation
        texts = await self.media.read(files)
        large = isinstance(conversation, EncodedConversation)
        return await self.bodies.run(large, with_files, conversation, tuple(files), texts)

    async def rendered(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its conversation, if any, made a prompt, with how to read the answer, and with
        what is known of the engine."""
        if request.conversation is None:
            return msgspec.structs.replace(request, fingerprint=self.fingerprint)
        conversation = await self.with_files(request.conversation, request.file_sources)
        prompt = await self.render(conversation)  # what depends on the prompt's text belongs here
        if self.model.vision is not None:
            self.model.vision.check(prompt, len(request.image_sources), request.conversation.param)
        parsing = self.model.parsing(prompt, request.sampling)
        return msgspec.structs.replace(
            request,
            prompts=(prompt,),
            conversation=None,
            image_sources=(),
            file_sources=(),
            images=await self.media.load(request.image_sources),
            parsing=parsing,
            sampling=self.model.constrained(prompt, request.sampling, request.tools),
            fingerprint=self.fingerprint,
        )

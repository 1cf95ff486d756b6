"""The resource of LLM nodes: an engine that generates text, and what is known of its model.

`system_fingerprint` is a short name for everything besides the request that an answer depends on. Two answers
to one request and seed may differ if the fingerprint differs: other weights, options or release.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ovserve import __version__
from ovserve.access import current_request
from ovserve.api import anthropic, azure, ollama, openai
from ovserve.api.openai.operation import TextEndpoint
from ovserve.api.openai.responses.request import DecodedResponses, ResponseContext
from ovserve.engine.admission.text import TextAdmission
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import Facts, Spec, TextFacts
from ovserve.errors import InvalidArgument, LoadError
from ovserve.graph import Node
from ovserve.kinds.resource import EngineCalculator, Host, ResourceKind, Transcriber
from ovserve.kinds.text.engine_choice import ONE_AT_A_TIME
from ovserve.kinds.text.options import LlmOptions, parse_llm_options
from ovserve.llm import fim
from ovserve.llm.chat_template import GENERIC_PARSER, ChatTemplate, Conversation, EncodedConversation
from ovserve.llm.images import Vision
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.parsing.registry import ParserChoice, choose
from ovserve.llm.request import FileSource, GenerateRequest, Sampling, TokenLogprob, ToolPolicy, with_files
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media
from ovserve.sandbox.templates import Templates

log = logging.getLogger(__name__)

# Make a large body a request for the engine, in a body process and in one call.
#
# Called by name from `node.py`. The request comes back without the parts whose size the client chooses
# freely: the conversation is JSON text, and the presentation keeps only what its writer reads.


def decode_within(endpoint: TextEndpoint, body: bytes, context: ResponseContext | None) -> Any:
    """The decoded body, with what a service knows of the request. Raises InvalidArgument."""
    decoded = endpoint.decode(body)
    return decoded.within(context) if isinstance(decoded, DecodedResponses) and context else decoded


def parse(
    endpoint: str, body: bytes, model: ModelContext, context: ResponseContext | None = None
) -> GenerateRequest:
    """Raises InvalidArgument as the endpoint does."""
    selected = ENDPOINTS[endpoint]
    request = selected.to_request(decode_within(selected, body, context), model)
    conversation = request.conversation
    if isinstance(conversation, Conversation):
        conversation = encoded(conversation)
    presentation = request.presentation.without_input()
    return msgspec.structs.replace(request, conversation=conversation, presentation=presentation, parts=None)


def encoded(conversation: Conversation) -> EncodedConversation:
    """Raises InvalidArgument."""
    try:
        return EncodedConversation.of(conversation)
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidArgument(
            f"{conversation.param}: cannot be given to the chat template: {error}", param=conversation.param
        ) from None


def constrained(
    model: ModelContext, prompt: str, sampling: Sampling, tools: ToolPolicy | None, prefill: str
) -> Sampling:
    """`ModelContext.constrained`, for a body process where the schemas of tools take long."""
    return model.constrained(prompt, sampling, tools, prefill)


def fingerprint(spec: Spec, facts: Facts, graph: bytes = b"") -> str:
    """Hash the spec, the facts and `graph` (the nodes and the authors' code).

    Model files count by name, size and time, because reading gigabytes would take longer than loading.
    """
    path = Path(spec.model_path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, int(file.stat().st_mtime)) for file in files if file.is_file()]
    stable_facts = msgspec.structs.replace(facts, load_seconds=0.0)
    digest = hashlib.sha256(msgspec.msgpack.encode([__version__, spec, stable_facts, stats, graph]))
    return f"fp_{digest.hexdigest()[:12]}"


MAX_AUDIO = 64  # parts of a request: each takes its turn in the speech engine


Messages = Sequence[Mapping[str, Any]]


class Generated(msgspec.Struct, frozen=True):
    """A whole answer. `finish_reason` is "stop" or "length"."""

    text: str
    reasoning: str
    finish_reason: str | None
    prompt_tokens: int
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()  # with `Sampling(logprobs=True)`

    @property
    def mean_logprob(self) -> float | None:
        """The mean natural logarithm of the tokens' probabilities; None without logprobs."""
        return mean_logprob(self.logprobs)


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float | None:
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else None


@dataclass(frozen=True)
class LlmResources:
    """An engine that generates text, and its model: for a calculator's author.

        class Judge(Calculator):
            llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

            async def process(self, cc: Context) -> None:
                answer = await cc[self.llm].generate("Is 7 prime?", max_tokens=5)

    Tokens that a calculator generates so are in the `usage` of the answer and count for the caller's limits.
    """

    engine: TextAdmission
    model: ModelContext
    templates: Templates
    media: Media
    fingerprint: str = ""  # of model, options and releases, for answers that carry it
    bodies: Bodies = field(default_factory=Bodies)

    def facts(self) -> Mapping[str, object]:
        return {"max_model_len": self.model.max_length}

    async def render(self, conversation: Conversation | EncodedConversation | Messages) -> str:
        """The prompt, by this model's template. Raises InvalidArgument in the template's words."""
        if not isinstance(conversation, Conversation | EncodedConversation):
            conversation = self.conversation(conversation)
        assert self.model.template is not None, "it made the conversation"
        return await self.templates.render(self.model.template, conversation)

    async def with_files(
        self,
        conversation: Conversation | EncodedConversation,
        files: Sequence[FileSource],
        speech: Transcriber | None = None,
    ) -> Conversation | EncodedConversation:
        """Put the text of the files in their places, of audio what `speech` hears. Raises InvalidArgument for
        one that has none."""
        if not files:
            return conversation
        audio = [file for file in files if file.audio]
        if len(audio) > MAX_AUDIO:
            param = audio[MAX_AUDIO].param
            raise InvalidArgument.at(param, f"{len(audio)} parts of audio, of at most {MAX_AUDIO}")
        documents = iter(await self.media.read([file for file in files if not file.audio]))
        texts = [await _heard(file, speech) if file.audio else next(documents) for file in files]
        large = isinstance(conversation, EncodedConversation)
        return await self.bodies.run(large, with_files, conversation, tuple(files), texts)

    async def rendered(self, request: GenerateRequest, speech: Transcriber | None = None) -> GenerateRequest:
        """The request with its conversation, if any, made a prompt, with how to read the answer, and with
        what is known of the engine."""
        presentation = msgspec.structs.replace(request.presentation, fingerprint=self.fingerprint)
        if request.conversation is None:
            return msgspec.structs.replace(request, presentation=presentation)
        presentation = msgspec.structs.replace(presentation, adapted=request.conversation.adapted)
        conversation = await self.with_files(request.conversation, request.file_sources, speech)
        prompt = await self.render(conversation)  # what depends on the prompt's text belongs here
        if self.model.vision is not None:
            self.model.vision.check(prompt, len(request.image_sources), request.conversation.param)
        prefill = request.conversation.prefill
        parsing = self.model.parsing(prompt, request.sampling, request.tools, prefill)
        sampling = self.model.with_reasoning_tags(prompt, request.sampling, prefill)
        sampling = self.model.with_markup(sampling, parsing, request.tools)
        arguments = (self.model, prompt, sampling, request.tools, prefill)
        return msgspec.structs.replace(
            request,
            prompts=(prompt,),
            conversation=None,
            image_sources=(),
            file_sources=(),
            images=await self.media.load(request.image_sources),
            parsing=parsing,
            sampling=await self.bodies.run(False, constrained, *arguments),
            presentation=presentation,
        )

    async def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of the text's tokens."""
        (row,) = await self.engine.tokenize([text], add_special_tokens=add_special_tokens)
        return row

    async def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        (text,) = await self.engine.detokenize([tokens], skip_special_tokens=skip_special_tokens)
        return text

    def conversation(self, messages: Messages, tools: ToolPolicy | None = None) -> Conversation:
        """Return messages as the input of `render`. Raises InvalidArgument without a chat template, and for
        tools that would not reach the model."""
        if self.model.template is None:
            raise InvalidArgument("the model has no chat template, so it takes text and no messages")
        return self.model.template.conversation(
            messages, tools=tools.prompt_tools if tools is not None else None
        )

    async def stream(
        self,
        prompt: str | Messages,
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        tools: ToolPolicy | None = None,
    ) -> AsyncGenerator[Parsed]:
        """Generate, packet by packet. Leaving the loop ends the generation.

        `prompt` is text, or messages for the chat template. `sampling` is greedy by default; its own
        `max_tokens` counts where it is given. The model may call `tools`; the calls are in the packets.
        """
        options = sampling or Sampling(temperature=0.0)
        if options.max_tokens is None:
            options = msgspec.structs.replace(options, max_tokens=max_tokens)
        plain = isinstance(prompt, str)
        request = GenerateRequest(
            id=f"node-{secrets.token_hex(12)}",
            prompts=(prompt,) if isinstance(prompt, str) else (),
            add_special_tokens=plain,
            sampling=options,
            conversation=None if isinstance(prompt, str) else self.conversation(prompt, tools),
            tools=tools,
        )
        request = await self.rendered(request)
        parser = OutputParser(request.parsing, request.tools)
        running = await self.engine.generate(request)
        try:
            while True:
                delta = await running.next()
                current_request().count_other(delta.prompt_tokens, delta.tokens)
                yield parser.feed(delta)
                if delta.last:
                    return
        finally:
            running.abort_if_running()

    async def generate(
        self, prompt: str | Messages, *, max_tokens: int = 256, sampling: Sampling | None = None
    ) -> Generated:
        """Generate a whole answer; its first choice. Arguments are those of `stream`."""
        answer = Completion()
        async with aclosing(self.stream(prompt, max_tokens=max_tokens, sampling=sampling)) as packets:
            async for parsed in packets:
                answer.add(parsed)
        choice = answer.choices[0]
        return Generated(
            choice.content,
            choice.reasoning,
            choice.finish_reason,
            answer.prompt_tokens,
            answer.completion_tokens,
            tuple(choice.logprobs),
        )


async def _heard(audio: FileSource, speech: Transcriber | None) -> str:
    if speech is None:
        raise InvalidArgument(
            f"{audio.param}: only an answer of a graph with a speech-to-text node transcribes audio",
            param=audio.param,
        )
    return await speech.transcribe(audio.data, audio.param)


async def _make(node: Node, options: LlmOptions, engine: TextClient, host: Host) -> LlmResources:
    facts = engine.facts
    template = await load_template(node, options, facts, host.templates)
    parsers = choose_parsers(options, template)
    log.info(
        "%s: %s; tools reach it by: %s", host.name, parsers, (template and template.tool_prompt) or "nothing"
    )
    ends = await engine.detokenize([[id_] for id_ in facts.eos_token_ids]) if facts.eos_token_ids else []
    model = ModelContext(
        template=template,
        max_length=facts.max_length,
        vocab_size=facts.vocab_size,
        max_tokens_limit=options.max_tokens_limit,
        best_of_limit=options.best_of_limit,
        repetition_detection=options.repetition_detection,
        decoding=engine.spec.decoding,
        defaults=facts.generation_config,
        parsers=parsers,
        vision=(
            Vision(
                facts.image_markers,
                exactly_one=engine.spec.device == ONE_AT_A_TIME,
                tokens=facts.image_tokens,
                added=facts.added_tokens,
            )
            if facts.vision
            else None
        ),
        fim=await fim.detect(functools.partial(engine.tokenize, add_special_tokens=False)),
        guide_tools=options.guide_tools,
        end_tokens=tuple(dict.fromkeys(text for text in (*ends, facts.eos_token) if text)),
    )
    admitted = host.admit(engine, options.limits)
    model_fingerprint = fingerprint(engine.spec, facts, host.code)
    return LlmResources(admitted, model, host.templates, host.images, model_fingerprint, host.bodies)


async def load_template(
    node: Node, options: LlmOptions, facts: TextFacts, templates: Templates
) -> ChatTemplate | None:
    """The graph's own, else the model's, compiled. Raises LoadError."""
    if not (text := options.template or facts.chat_template):
        return None
    template = ChatTemplate(
        text,
        facts.tool_template if options.template is None else None,
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        pad_token=facts.pad_token,
        generic_tools=options.generic_tool_prompt,
    )
    try:
        return await templates.load(template)
    except LoadError as error:
        if options.template:
            raise node.error(f"{options.chat_template_path}: {error.reason}", "chat_template_path") from error
        raise node.error(f"the model's own: {error.reason}", "models_path") from error


def choose_parsers(options: LlmOptions, template: ChatTemplate | None) -> ParserChoice:
    """Return the graph's choice, else the one that the template shows."""
    generic = template is not None and template.tool_prompt == "generic"
    return choose(
        options.tool_parser or (GENERIC_PARSER if generic else ""),
        options.reasoning_parser,
        template.text if template is not None else None,
        model="/".join(Path(options.spec.model_path).parts[-2:]),
    )


LLM = ResourceKind(
    tag="LLM_NODE_RESOURCES",
    packet_type=LlmResources,
    options_type=LLMCalculatorOptions,
    parse=parse_llm_options,
    spec=lambda options: options.spec,
    fallback=lambda options: options.engine.fallback,
    make=_make,
    # OVMS's pool of graph runs needs it; runs are not pooled here, so it carries nothing.
    companions=("LLM_NODE_EXECUTION_CONTEXTS",),
)


class LlmCalculator(EngineCalculator):
    """A node that holds a text generation engine."""

    resource = LLM


ENDPOINTS: dict[str, TextEndpoint] = {
    **openai.ENDPOINTS,
    **azure.ENDPOINTS,
    **anthropic.ENDPOINTS,
    **ollama.ENDPOINTS,
}

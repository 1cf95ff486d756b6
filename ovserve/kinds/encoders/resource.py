"""Shared by nodes of encoders: their options, such as a directory and a device, an engine of calls, facts
about its model, counters, and POST score.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from msgspec import structs

from ovserve.access import current_request
from ovserve.engine.client.calls import CallClient
from ovserve.engine.protocol.specs import Spec
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Contract, Input, Node, Output
from ovserve.kinds.encoders.metrics import EncoderMetrics
from ovserve.kinds.encoders.score_api import decode_score, score_body
from ovserve.kinds.encoders.spec import (
    DETOKENIZE,
    SCORE,
    TOKENIZE,
    BatchCounts,
    DetokenizeArguments,
    EncoderFacts,
    EncoderFiles,
    ScoreAnswer,
    TokenizeArguments,
    missing_files,
    read_encoder_files,
)
from ovserve.kinds.payload import TRUNCATED_HEADER, HttpCalculator, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.plugin_config import without_lookup
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ResourceKind, facts_of, model_path
from ovserve.sandbox.bodies import Bodies

if TYPE_CHECKING:
    from google.protobuf.message import Message

SPECIAL_TOKENS = 2  # around a text


class EncoderMessage(Protocol):
    """Options that the messages of all these nodes have in common."""

    models_path: str
    target_device: str
    plugin_config: str


class InputMessage(Protocol):
    """Options of a node whose inputs are single texts."""

    max_length: int

    def HasField(self, field_name: Literal["max_length"]) -> bool: ...


class EncoderPlace(NamedTuple):
    path: str  # absolute
    device: str
    properties: str  # JSON
    files: EncoderFiles


def encoder_place(node: Node, options: EncoderMessage, task: str) -> EncoderPlace:
    """Raises LoadError naming the field. `task`: see `model_path`."""
    properties = without_lookup(node, options.plugin_config)
    path, files = model_path(node, options.models_path, read_encoder_files, task=task)
    device = options.target_device or "CPU"
    return EncoderPlace(str(path), device, json.dumps(properties, sort_keys=True), files)


def input_length(node: Node, options: InputMessage, place: EncoderPlace) -> int | None:
    """Return the tokens of an input; None: what fits the model. Raises LoadError."""
    if not options.HasField("max_length"):
        return None
    most = place.files.max_length
    if not SPECIAL_TOKENS < options.max_length <= most:
        range_ = f"more than {SPECIAL_TOKENS} and at most the model's {most}"
        raise node.error(f"expected {range_}, got {options.max_length}", "max_length")
    return options.max_length


def check_files(node: Node, path: str) -> None:
    """Raises LoadError for a directory that lacks a file."""
    if missing := missing_files(Path(path)):
        raise node.error("; ".join(missing), "models_path")


@dataclass(frozen=True)
class EncoderOptions:
    """The options of a node, each of which only some kinds have."""

    spec: Spec
    truncate: bool = False
    max_allowed_chunks: int = 10_000  # of a reranker's request


F = TypeVar("F", bound=EncoderFacts)


@dataclass(frozen=True)
class EncoderResource(Generic[F]):
    """The side packet of encoder nodes. `special` is false where texts are framed by the node itself."""

    special: ClassVar[bool] = True

    engine: Caller
    model: F
    options: EncoderOptions
    bodies: Bodies
    metrics: EncoderMetrics

    def facts(self) -> Mapping[str, object]:
        fields = facts_of(self.model)
        fields["max_model_len"] = fields.pop("max_length", None)
        return fields

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        special = add_special_tokens and self.special
        item = await self.engine.one(TOKENIZE, TokenizeArguments(list(texts), special))
        rows: list[list[int]] = item.decode(list[list[int]])
        return rows

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        return await self._detokenize(DetokenizeArguments([*map(list, rows)], skip_special_tokens))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, of parts of characters their bytes."""
        return await self._detokenize(DetokenizeArguments([[id_] for id_ in ids], escaped=True))

    async def _detokenize(self, arguments: DetokenizeArguments) -> list[str]:
        texts: list[str] = (await self.engine.one(DETOKENIZE, arguments)).decode(list[str])
        return texts

    def count(self, tokens: int, truncated: int, batches: BatchCounts) -> None:
        current_request().count(tokens, 0)
        self.metrics.tokens += tokens
        self.metrics.truncated += truncated
        self.metrics.ran(batches.padded, batches.tokens, batches.waited)


def encoder_kind(
    tag: str,
    resource: type[EncoderResource[F]],
    options_type: type[Message],
    parse: Callable[[Node], EncoderOptions],
) -> ResourceKind[EncoderOptions]:
    """Return the kind of a node that holds an encoder; `resource` is what its nodes share."""

    async def make(node: Node, options: EncoderOptions, engine: CallClient, host: Host) -> EncoderResource[F]:
        admission, metrics = host.admit_calls(engine, {}), host.metrics.of(EncoderMetrics)
        return resource(admission, cast("F", engine.facts), options, host.bodies, metrics)

    return ResourceKind(
        tag=tag,
        packet_type=resource,
        options_type=options_type,
        parse=parse,
        spec=lambda options: options.spec,
        make=make,
        check=lambda node, options: check_files(node, options.spec.model_path),
    )


async def score(
    payload: HttpPayload,
    encoder: EncoderResource[Any],
    *,
    without: Iterable[str],
    truncate: bool,
    most: int | None,
) -> HttpResponse:
    """Answer POST score. `without`: fields that have no effect on this model, `most`: pairs of a request."""
    request = await encoder.bodies.run(payload.head.large, decode_score, payload.body)
    pairs, arguments = request.pairs, request.arguments
    if most is not None and pairs > most:
        name = arguments.names[1]
        raise InvalidArgument.at(
            name, f"Number of pairs exceeds max_allowed_chunks: {pairs} of at most {most}"
        )
    if truncate and arguments.truncate is None:
        arguments = structs.replace(arguments, truncate=0)
    item = await encoder.engine.one(SCORE, arguments, (request.texts,))
    answer: ScoreAnswer = item.decode(ScoreAnswer)
    encoder.count(answer.tokens, answer.truncated, answer.batches)
    encoder.metrics.pairs += pairs
    scores = struct.unpack(f"<{pairs}f", item.blobs[0])
    ignored = sorted({*request.ignored, *request.optional.intersection(without)})
    body = score_body(request.model, scores, answer.tokens)
    return HttpResponse(body, headers=headers_of(ignored, answer.truncated))


def headers_of(ignored: Iterable[str], truncated: int | str) -> dict[str, str]:
    """Return the headers of an answer. `truncated`: how many inputs were cut, or which."""
    headers = ignored_header(ignored)
    return headers | {TRUNCATED_HEADER: str(truncated)} if truncated else headers


class EncoderCalculator(EngineCalculator, HttpCalculator):
    """A node that answers whole requests by `answer`; its streams carry either pair of tags."""

    runs_on = "loop"
    answers_whole = True

    request = Input("REQUEST_PAYLOAD", HttpPayload)
    response = Output("RESPONSE_PAYLOAD", HttpResponse)
    http_request = Input("HTTP_REQUEST_PAYLOAD", HttpPayload, optional=True)
    http_response = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse, optional=True)

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        """Return the ports of the pair of tags that the node has; of OVMS's pair if it has neither."""
        contract = super().get_contract(node)
        http = any(e.tag == cls.http_request.tag for e in node.inputs)
        into, out_of = (cls.http_request, cls.http_response) if http else (cls.request, cls.response)
        return replace(contract, inputs=(into,), outputs=(out_of,))

    async def process(self, cc: Context) -> None:
        (source,), (target,) = cc.contract.inputs, cc.contract.outputs
        payload: HttpPayload | None = cc[source]
        if payload is not None:
            cc.send(target, await self.answer(cc, payload))

    async def answer(self, cc: Context, payload: HttpPayload) -> HttpResponse:
        raise NotImplementedError

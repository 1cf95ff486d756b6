"""POST score and classify in vLLM's form: the request and response bodies, and what the engine gets.

The lists of a score have four pairs of names, all of them vLLM's. Source:
https://docs.vllm.ai/en/latest/models/pooling_models/scoring/ and .../classify/, read 2026-11-28
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode, new_id
from ovserve.api.openai.operation import Natural, NaturalOrMinusOne, Operation, doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.encoders.embeddings_api import TokenId, inputs_of, truncate_to
from ovserve.kinds.encoders.spec import ClassifyArguments, ScoreArguments
from ovserve.kinds.payload import packed

SCORE, CLASSIFY = "score", "classify"
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
OPTIONAL = ("activation", "instruction", "max_tokens_per_query", "use_activation")
FIELDS = tuple(dict.fromkeys(name for pair in PAIRS for name in pair))

Texts = Annotated[str | list[str] | None, doc("a text or texts")]
ACTIVATION = "false: logits; default: what the model's files make of them"
OLDER = "an older name of use_activation"


class ScoreRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    text_1: Annotated[Texts, doc("one text, or as many as text_2 has")] = None
    text_2: Annotated[Texts, doc("a text or texts; each makes a pair")] = None
    queries: Annotated[Texts, doc("another name of text_1, with documents or items")] = None
    documents: Annotated[Texts, doc("another name of text_2, with queries")] = None
    items: Annotated[Texts, doc("another name of text_2, with queries")] = None
    data_1: Annotated[Texts, doc("another name of text_1, with data_2")] = None
    data_2: Annotated[Texts, doc("another name of text_2, with data_1")] = None
    truncate_prompt_tokens: Annotated[
        NaturalOrMinusOne | None,
        doc("cut pairs, or texts of an embeddings model, to so many tokens; -1: to what the model reads"),
    ] = None
    max_tokens_per_query: Annotated[Natural | None, doc("tokens read of a first text; 0: all")] = None
    max_tokens_per_doc: Annotated[Natural | None, doc("tokens read of a second text; 0: all")] = None
    instruction: Annotated[str | None, doc("what a causal reranker shall judge by")] = None
    use_activation: Annotated[bool | None, doc(ACTIVATION)] = None
    activation: Annotated[bool | None, doc(OLDER)] = None
    user: Annotated[str | None, doc("without effect")] = None


class ClassificationRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    input: Annotated[str | list[str | TokenId | list[TokenId]], doc("nothing mixed")]
    truncate_prompt_tokens: Annotated[
        NaturalOrMinusOne | None, doc("cut inputs to so many tokens; -1: to what the model reads")
    ] = None
    add_special_tokens: Annotated[bool | None, doc("false: texts get no special tokens")] = None
    use_activation: Annotated[bool | None, doc(ACTIVATION)] = None
    activation: Annotated[bool | None, doc(OLDER)] = None
    softmax: Annotated[bool | None, doc(OLDER)] = None
    user: Annotated[str | None, doc("without effect")] = None


class PoolingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class Score(msgspec.Struct):
    index: int
    object: str
    score: float


class ScoreResponse(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class Classification(msgspec.Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationResponse(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    data: list[Classification]
    usage: PoolingUsage


class Scored(msgspec.Struct, frozen=True):
    """A checked body of score. `texts` is msgpack of the two lists."""

    model: str
    texts: bytes
    pairs: int
    arguments: ScoreArguments
    optional: frozenset[str]  # fields in the body that some models have no use for
    ignored: tuple[str, ...]


class Classified(msgspec.Struct, frozen=True):
    """A checked body of classify. `inputs` is msgpack: a list of texts, or of lists of token ids."""

    model: str
    inputs: bytes
    count: int
    arguments: ClassifyArguments
    ignored: tuple[str, ...]


_score = msgspec.json.Decoder(ScoreRequest)
_classification = msgspec.json.Decoder(ClassificationRequest)


def decode_score(body: bytes) -> Scored:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _score)
    names = _names(request)
    first, second = (_texts(getattr(request, name)) for name in names)
    for name, texts in zip(names, (first, second), strict=True):
        if not texts:
            raise InvalidArgument.at(name, "expected at least one text, got none")
    if len(first) not in (1, len(second)):
        raise InvalidArgument(
            f"{names[0]}: expected one text, or as many as {names[1]} has, which is {len(second)}, "
            f"got {len(first)}",
            param=names[0],
        )
    value = _activation(request, "use_activation", "activation")
    both = packed((first, second), names[0])
    arguments = ScoreArguments(
        names,
        truncate_to(request.truncate_prompt_tokens),
        request.max_tokens_per_query or None,
        request.max_tokens_per_doc or None,
        request.instruction or "",
        raw=value is False,
    )
    optional = frozenset(name for name in OPTIONAL if getattr(request, name) not in (None, ""))
    return Scored(request.model, both, len(second), arguments, optional, tuple(sorted(unknown)))


def _names(request: ScoreRequest) -> tuple[str, str]:
    """Return the pair of fields that the body has. Raises InvalidArgument for half a pair, or for two."""
    fields = [name for name in FIELDS if getattr(request, name) is not None]
    pair = next((pair for pair in PAIRS if set(pair) <= set(fields)), None)
    if pair is None:
        missing = next((b if a in fields else a for a, b in PAIRS if {a, b} & set(fields)), "text_1")
        choices = ", ".join(f"{a} and {b}" for a, b in PAIRS)
        raise InvalidArgument.at(missing, f"required; the texts of a score are {choices}")
    if odd := [name for name in fields if name not in pair]:
        raise InvalidArgument(f"{odd[0]}: not with {pair[0]} and {pair[1]}", param=odd[0])
    return pair


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def decode_classification(body: bytes) -> Classified:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _classification)
    inputs, tokens = inputs_of(request.input)
    without_effect = ["add_special_tokens"] * (tokens and request.add_special_tokens is not None)
    activation = _activation(request, "use_activation", "activation", "softmax")
    text = packed(inputs, "input")
    arguments = ClassifyArguments(
        tokens,
        truncate_to(request.truncate_prompt_tokens),
        request.add_special_tokens is not False,
        activation is False,
    )
    ignored = tuple(sorted({*unknown, *without_effect}))
    return Classified(request.model, text, len(inputs), arguments, ignored)


def _activation(request: msgspec.Struct, *names: str) -> bool | None:
    """Return the value of the one field, whichever of its names it has. Raises InvalidArgument for two."""
    values = {name: value for name in names if (value := getattr(request, name)) is not None}
    if len(set(values.values())) > 1:
        first, *others = values
        raise InvalidArgument(
            f"{others[-1]}: {encode(values[others[-1]]).decode()} contradicts {first}", param=others[-1]
        )
    return next(iter(values.values()), None)


def score_body(model: str, scores: Sequence[float], tokens: int) -> bytes:
    data = [Score(index, "score", score) for index, score in enumerate(scores)]
    usage = PoolingUsage(tokens, tokens)
    return encode(ScoreResponse(new_id("score-"), "list", int(time.time()), model, data, usage))


def classification_body(
    model: str, values: Sequence[bytes], best: Sequence[int], labels: Sequence[str], tokens: int
) -> bytes:
    """Return the response. `values` are JSON lists of a number per label, `best` numbers of labels."""
    names = [encode(label) for label in labels]
    count = len(labels)
    data = b",".join(
        b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}' % (i, names[first], value, count)
        for i, (first, value) in enumerate(zip(best, values, strict=True))
    )
    head = (encode(new_id("classify-")), int(time.time()), encode(model), data)
    usage = encode(PoolingUsage(tokens, tokens))
    return b'{"id":%b,"object":"list","created":%d,"model":%b,"data":[%b],"usage":%b}' % (*head, usage)


OPERATIONS = (
    Operation(
        "POST",
        "/v3/score",
        "The similarity of pairs of texts, in vLLM's form.",
        answer=ScoreResponse,
        request=ScoreRequest,
        example={"model": "reranker", "text_1": "What is the sea?", "text_2": ["Salt water.", "A bicycle."]},
        reported={"user": "without effect"},
        declared=True,
    ),
    Operation(
        "POST",
        "/v3/classify",
        "Texts to labels, in vLLM's form.",
        answer=ClassificationResponse,
        request=ClassificationRequest,
        example={"model": "classifier", "input": ["The ship left the harbour."]},
        defaults={"add_special_tokens": True},
        reported={"user": "without effect"},
        declared=True,
    ),
)

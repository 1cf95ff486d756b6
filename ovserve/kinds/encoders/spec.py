"""Specs, facts and messages of the engines that encode text: embeddings, rerankers and classifiers."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from ovserve.engine.protocol.specs import Facts, Spec

# The methods of an encoder's calls.
EMBED, RERANK, TOKENIZE, DETOKENIZE = "embed", "rerank", "tokenize", "detokenize"
SCORE, CLASSIFY = "score", "classify"

Encoding = Literal["float", "base64"]
FLOAT: Encoding = "float"
BASE64: Encoding = "base64"
SEPARATOR = b"\n"  # between the vectors of an answer, none of whose forms has one


class EncoderFacts(Facts, frozen=True, omit_defaults=True):
    """Facts of a loaded encoder. `max_length` is in tokens, special ones included."""

    architecture: str = ""
    vocab_size: int = 0
    pad_token_id: int = 0
    bos_token: str = ""  # the first special token of a text; "": none
    eos_token: str = ""  # the last one


class EmbeddingFacts(EncoderFacts, frozen=True, omit_defaults=True):
    """`max_seq_length` is that of sentence_bert_config.json: the model reads more, but is not made for it."""

    max_seq_length: int = 0
    dimensions: int = 0
    pooling: str = ""
    normalized: bool = True
    matryoshka: tuple[int, ...] = ()
    prompts: dict[str, str] = {}
    default_prompt: str = ""


class EmbeddingSpec(Spec, frozen=True):
    """A text embedding model in a directory in OpenVINO IR form."""

    kind: ClassVar[str] = "embeddings"
    backend: ClassVar[str] = "ovserve.kinds.encoders.worker.embed:EmbeddingBackend"
    facts_type: ClassVar[type[Facts]] = EmbeddingFacts
    shared: ClassVar[bool] = True  # one process holds many small models

    pooling: str = ""  # CLS, LAST or MEAN; "": the model's files say
    normalize: bool = True
    max_length: int | None = None  # tokens of an input; None: what fits the model


class EmbedArguments(msgspec.Struct, frozen=True):
    """The arguments of EMBED; the inputs are its one blob: msgpack of texts, or of lists of token ids."""

    prompt: str = ""  # put before each text
    tokens: bool = False  # the inputs are token ids
    truncate: int | None = None  # cut to so many tokens; None: a longer input is an error, 0: to the limit
    whole: bool = False  # with None: refuse what sentence-transformers would cut
    dimensions: int | None = None
    encoding: Encoding = FLOAT


class BatchCounts(msgspec.Struct, frozen=True, array_like=True):
    """Inferences since the last report, by the engine's own count."""

    padded: list[int] = []  # tokens of each batch, padding included
    tokens: int = 0  # of all of them, without padding
    waited: list[float] = []  # seconds from arrival to the first inference, for each call


class EmbedAnswer(msgspec.Struct, frozen=True):
    """The item of EMBED; the vectors are its one blob: JSON values divided by SEPARATOR."""

    tokens: int  # of all inputs, special ones included
    truncated: int = 0  # inputs that were cut
    batches: BatchCounts = BatchCounts()


class TokenizeArguments(msgspec.Struct, frozen=True):
    texts: list[str]
    add_special_tokens: bool = True


class DetokenizeArguments(msgspec.Struct, frozen=True):
    """`escaped`: of tokens that are parts of characters their bytes, as in log-probabilities."""

    rows: list[list[int]]
    skip_special_tokens: bool = False
    escaped: bool = False


CAUSAL = "causal"  # a form of pairs; it alone has a place for an instruction


class RerankFacts(EncoderFacts, frozen=True, omit_defaults=True):
    form: str = ""  # how a pair is built: "cross-encoder", "joined" or CAUSAL
    query_limit: int = 0  # tokens of a query that are read


class RerankSpec(Spec, frozen=True):
    """A model that scores pairs of a query and a document, in a directory in OpenVINO IR form."""

    kind: ClassVar[str] = "rerank"
    backend: ClassVar[str] = "ovserve.kinds.encoders.worker.rerank:RerankBackend"
    facts_type: ClassVar[type[Facts]] = RerankFacts
    shared: ClassVar[bool] = True

    max_position_embeddings: int | None = None  # tokens of a pair; None: the model's


class RerankArguments(msgspec.Struct, frozen=True):
    """The arguments of RERANK; the documents are its one blob: msgpack of a list of texts."""

    query: str
    max_chunks: int  # of all documents
    max_chunks_per_document: int | None = None  # the others are not read
    max_tokens_per_document: int | None = None
    instruction: str = ""  # for causal models
    raw: bool = False  # logits instead of scores from 0 to 1


class RerankAnswer(msgspec.Struct, frozen=True):
    """The item of RERANK; its one blob has a float32 per document."""

    tokens: int
    chunks: int
    query_cut: bool = False
    documents_cut: int = 0
    batches: BatchCounts = BatchCounts()


class ScoreArguments(msgspec.Struct, frozen=True):
    """The arguments of SCORE; its one blob is msgpack of two lists of texts, of which the first may have one
    text for all of the second."""

    names: tuple[str, str]  # of the two lists in the request, for errors
    truncate: int | None = None  # as that of EmbedArguments, of a pair or, of embeddings, of a text
    max_first: int | None = None  # tokens of a first text that are read, without special ones
    max_second: int | None = None
    instruction: str = ""  # for causal models
    raw: bool = False  # logits instead of what the model's files make of them


class ScoreAnswer(msgspec.Struct, frozen=True):
    """The item of SCORE; its one blob has a float32 per pair."""

    tokens: int  # of all that is read, special ones included
    truncated: int = 0  # pairs, or of embeddings texts, that were cut
    batches: BatchCounts = BatchCounts()


class ClassificationFacts(EncoderFacts, frozen=True, omit_defaults=True):
    labels: tuple[str, ...] = ()  # in the order of the model's output
    problem_type: str = ""  # of config.json


class ClassificationSpec(Spec, frozen=True):
    """A classifier of texts in a directory in OpenVINO IR form."""

    kind: ClassVar[str] = "classification"
    backend: ClassVar[str] = "ovserve.kinds.encoders.worker.embed:ClassificationBackend"
    facts_type: ClassVar[type[Facts]] = ClassificationFacts
    shared: ClassVar[bool] = True

    max_length: int | None = None  # tokens of an input; None: what fits the model


class ClassifyArguments(msgspec.Struct, frozen=True):
    """The arguments of CLASSIFY; the inputs are its one blob, as those of EMBED."""

    tokens: bool = False  # the inputs are token ids
    truncate: int | None = None  # as that of EmbedArguments
    special: bool = True  # texts get the tokenizer's special tokens
    raw: bool = False  # logits instead of probabilities


class ClassifyAnswer(msgspec.Struct, frozen=True):
    """The item of CLASSIFY; its one blob has a JSON list of values per input, divided by SEPARATOR."""

    tokens: int
    best: list[int]  # the number of each input's first label
    truncated: int = 0
    batches: BatchCounts = BatchCounts()

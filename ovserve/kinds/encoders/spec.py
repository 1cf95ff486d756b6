"""Specs, facts and messages of the engines that encode text: embeddings, rerankers and classifiers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ovserve.engine.model.files import LENGTH_KEYS, json_object, json_or_empty, lfs_pointer
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError

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
    max_chunks: int = 0  # of all documents; the node sets it
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


# Facts about an encoder from its files: pooling, normalisation, prompts, the longest input, and its task.
#
# The files are those of transformers (config.json, tokenizer_config.json) and of sentence-transformers
# (modules.json, 1_Pooling/config.json, config_sentence_transformers.json, sentence_bert_config.json). All are
# optional.
#
# The rules of the task are those of OVMS's task detection, as far as they concern embeddings and rerank. A
# model that generates text may be a reranker or an embedder too; then only `--task` says so.


MODEL = "openvino_model.xml"
ONNX = ("model.onnx", "onnx/model.onnx")  # read as they are where there is no IR
TOKENIZER = "tokenizer.json"
TOKENIZER_IR = "openvino_tokenizer.xml"
FAST = f"{TOKENIZER} or {TOKENIZER_IR}"

Pooling = Literal["CLS", "LAST", "MEAN"]
MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "CLS",
    "pooling_mode_mean_tokens": "MEAN",
    "pooling_mode_lasttoken": "LAST",
}
UNKNOWN_LENGTH = 1024  # tokens, OVMS's default for a model that does not define its own
# Models whose positions begin behind the padding id, so that many fewer tokens fit than there are positions.
POSITIONS_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
NO_LIMIT = 1 << 24  # transformers writes 10^30 for a tokenizer without a limit


class EncoderFiles(msgspec.Struct, frozen=True):
    architecture: str = "unknown"
    model_type: str = ""
    max_length: int = UNKNOWN_LENGTH
    sequence_length: int = UNKNOWN_LENGTH  # tokens of a text; longer ones are cut
    vocab_size: int = 0
    pad_token_id: int = 0
    pooling: Pooling = "CLS"
    pooling_note: str = ""  # why it is not the one that the files name
    include_prompt: bool = True  # the tokens of a prompt are pooled too
    prompts: dict[str, str] = {}
    default_prompt: str = ""  # its name
    matryoshka: tuple[int, ...] = ()  # sizes that the model was trained to be cut to; (): any
    add_bos_token: bool = True
    labels: dict[str, str] = {}  # id2label of a classifier: names by the numbers of its output
    problem_type: str = ""
    activation: str = ""  # sentence-transformers' of a cross-encoder's logits, such as Identity


def read_encoder_files(directory: Path) -> EncoderFiles:
    """Raises LoadError for a directory that is not one, or for a file that is not a JSON object."""
    if not directory.is_dir():
        raise LoadError("expected a directory with a model in OpenVINO IR form", file=str(directory))
    if pointer := lfs_pointer(str(directory)):
        raise LoadError("a Git LFS pointer instead of the file; `git lfs pull` fetches it", file=pointer)
    config = json_object(directory / "config.json")
    tokenizer = json_object(directory / "tokenizer_config.json")
    sentence = json_object(directory / "config_sentence_transformers.json")
    bert = json_object(directory / "sentence_bert_config.json")
    max_length = _max_length(config, tokenizer)
    pooling_file = directory / "1_Pooling/config.json"
    pooling, note = _pooling(json_object(pooling_file), pooling_file.is_file())
    architectures = config.get("architectures")
    prompts = sentence.get("prompts")
    return EncoderFiles(
        architecture=str(architectures[0])
        if isinstance(architectures, list) and architectures
        else "unknown",
        model_type=str(config.get("model_type", "")),
        max_length=max_length,
        sequence_length=_limit(bert.get("max_seq_length"), max_length),
        vocab_size=_integer(config.get("vocab_size")),
        pad_token_id=_integer(config.get("pad_token_id")),
        pooling=pooling,
        pooling_note=note,
        include_prompt=json_object(pooling_file).get("include_prompt") is not False,
        prompts={str(k): str(v) for k, v in prompts.items()} if isinstance(prompts, dict) else {},
        default_prompt=str(sentence.get("default_prompt_name") or ""),
        matryoshka=tuple(d for d in config.get("matryoshka_dimensions") or () if isinstance(d, int)),
        add_bos_token=tokenizer.get("add_bos_token") is not False,
        labels=labels_of(config),
        problem_type=str(config.get("problem_type") or ""),
        activation=_activation(config),
    )


def labels_of(config: dict[str, Any]) -> dict[str, str]:
    labels = config.get("id2label")
    return {str(key): str(label) for key, label in labels.items()} if isinstance(labels, dict) else {}


def _activation(config: dict[str, Any]) -> str:
    newer = config.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, dict) else None
    return str(name or config.get("sbert_ce_default_activation_function") or "").rpartition(".")[2]


def model_file(directory: Path) -> Path:
    """Return the network of an encoder: IR, else ONNX; the path of IR if there is neither."""
    return next((p for name in (MODEL, *ONNX) if (p := directory / name).is_file()), directory / MODEL)


def missing_files(directory: Path) -> list[str]:
    """Return what an encoder in OpenVINO IR form lacks, one sentence each."""
    faults = []
    if not model_file(directory).is_file():
        faults.append(f"{directory} has no {MODEL} and no {ONNX[0]}")
    elif model_file(directory).name == MODEL and not (directory / MODEL).with_suffix(".bin").is_file():
        faults.append(f"{directory} has no {MODEL.replace('.xml', '.bin')}")
    if not any((directory / name).is_file() for name in (TOKENIZER, TOKENIZER_IR)):
        faults.append(f"{directory} has no {FAST}")
    return faults


def _pooling(flags: dict[str, Any], there: bool) -> tuple[Pooling, str]:
    modes = [name for name, value in flags.items() if name.startswith("pooling_mode_") and value is True]
    if len(modes) == 1 and modes[0] in MODES:
        return MODES[modes[0]], ""
    mode = flags.get("pooling_mode")  # newer releases of sentence-transformers write one word
    by_word: dict[object, Pooling] = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
    if not modes and isinstance(mode, str) and mode in by_word:
        return by_word[mode], ""
    if not there:
        return "CLS", "1_Pooling/config.json does not exist"
    described = " and ".join(modes) or str(mode or "no mode")
    return "CLS", f"1_Pooling/config.json asks for {described}, and one of {', '.join(MODES)} is supported"


def _max_length(config: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """Return the tokens that fit: the model's positions, and the tokenizer's own limit if it is lower."""
    length = next((config[key] for key in LENGTH_KEYS if isinstance(config.get(key), int)), UNKNOWN_LENGTH)
    if config.get("model_type") in POSITIONS_BEHIND_PADDING and config.get("max_position_embeddings"):
        length -= _integer(config.get("pad_token_id"), 1) + 1
    limit = tokenizer.get("model_max_length")
    if isinstance(limit, int) and 0 < limit < NO_LIMIT:
        length = min(length, limit)
    return max(1, length)


def _integer(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _limit(value: object, most: int) -> int:
    return min(most, value) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else most


EMBEDDINGS, RERANKING, CLASSIFICATION = "embeddings", "rerank", "classification"
UNNAMED = re.compile(r"LABEL_\d+")  # what transformers calls a label without a name
SCORES = ("LogitScore", "CrossEncoder")
EMBEDDERS = ("BertModel", "JinaBertModel", "MPNetModel", "RobertaModel", "XLMRobertaModel")


def encoder_task(directory: Path) -> str:
    """Return the task of an encoder, "" for a directory that does not look like one."""
    if not any((directory / name).is_file() for name in (MODEL, *ONNX)):
        return ""
    modules = [
        str(m.get("type", "")) for m in json_or_empty(directory / "modules.json", list) if isinstance(m, dict)
    ]
    config = json_or_empty(directory / "config.json", dict)
    kinds = [kind for kind in config.get("architectures") or () if isinstance(kind, str)]
    scores = any(word in module for module in modules for word in SCORES)
    if scores:
        return RERANKING
    if any(kind.endswith("ForSequenceClassification") for kind in kinds):
        labels = labels_of(config)
        has_names = len(labels) == 2 and not all(map(UNNAMED.fullmatch, labels.values()))
        return CLASSIFICATION if has_names or len(labels) > 2 else RERANKING
    pools = any("Pooling" in module for module in modules)
    return EMBEDDINGS if pools or set(kinds) & set(EMBEDDERS) else ""

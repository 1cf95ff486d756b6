"""The engine of rerankers: pairs of a query and a document to scores.

Rows of all requests share the pool of `runner.py`, so documents of different requests are batched together.
RERANK splits a document that is too long, and its best piece counts. SCORE takes each pair as one row.

A causal language model gets a prompt that asks for yes or no, and the logits of these two tokens count. The
form is that of Qwen3-Reranker. The model is cut before its last matrix, of which two rows are used instead of
a vocabulary.
Source: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B, read 2026-11-22

A query and a document are joined to one row. The tokenizer's own template for pairs is used where it has one.
Otherwise the special tokens come from the files of the model, and the form from its family:

    BERT        [CLS] query [SEP] document [SEP]        types 0, then 1
    RoBERTa     <s> query </s></s> document </s>        no types
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from ovserve.engine.model.files import json_or_empty
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import (
    CAUSAL,
    POSITIONS_BEHIND_PADDING,
    RERANK,
    SCORE,
    RerankAnswer,
    RerankArguments,
    RerankFacts,
    RerankSpec,
    ScoreAnswer,
    ScoreArguments,
)
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.encoder_backend import EncoderBackend, decoded, sigmoid
from ovserve.kinds.encoders.worker.model import FastTokenizer, Row, TextTokenizer
from ovserve.kinds.encoders.worker.pool import Job


class PairForm(msgspec.Struct, frozen=True):
    """The special tokens around the two texts, and whether the second has a type of its own."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: bool

    @property
    def special(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def row(self, query: Row, document: Row) -> tuple[Row, int]:
        """Return the ids, and where the tokens of type 1 begin."""
        parts = (self.before, query, self.between, document, self.after)
        row = np.concatenate([np.asarray(part, np.int32) for part in parts])
        start = len(self.before) + len(query) + len(self.between)
        return row, start if self.typed else len(row)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the tokens that are kept of two texts: the longer one is cut, and both to half of the room where
    that is not enough, as tokenizers do by default."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


JOINED = PairForm((), (), (), typed=False)  # the texts are concatenated before they are tokenised


def pair_form(directory: Path, tokenizer: TextTokenizer, model_type: str) -> PairForm:
    """Raises LoadError when the special tokens are not found."""
    if isinstance(tokenizer, FastTokenizer) and (template_form := _of_template(tokenizer)) is not None:
        return template_form
    roberta = model_type in POSITIONS_BEHIND_PADDING
    first = _special(directory, tokenizer, ("bos", "cls") if roberta else ("cls", "bos"))
    last = _special(directory, tokenizer, ("eos", "sep") if roberta else ("sep", "eos"))
    return PairForm((first,), (last, last) if roberta else (last,), (last,), typed=not roberta)


def _of_template(tokenizer: FastTokenizer) -> PairForm | None:
    """The tokenizer's own form; None if it puts nothing between the texts."""
    bare = tokenizer.encode(["a"], special=False)[0].tolist()
    ids, types = tokenizer.pair("a", "a")
    size = len(bare)
    at = [i for i in range(len(ids) - size + 1) if size and ids[i : i + size] == bare]
    if len(at) < 2:
        return None
    first, second = at[0], at[-1]
    between = tuple(ids[first + size : second])
    if not between:
        return None
    return PairForm(tuple(ids[:first]), between, tuple(ids[second + size :]), typed=types[second] == 1)


def _special(directory: Path, tokenizer: TextTokenizer, names: Sequence[str]) -> int:
    """Return the id of the first of these tokens that the files define; 0 is an id like any other."""
    config = json_or_empty(directory / "config.json", dict)
    files = [
        json_or_empty(directory / name, dict) for name in ("special_tokens_map.json", "tokenizer_config.json")
    ]
    for name in names:
        for fields in files:
            token = fields.get(f"{name}_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and (id_ := tokenizer.id_of(text)) is not None:
                return id_
        if isinstance(config.get(f"{name}_token_id"), int):
            return int(config[f"{name}_token_id"])
    listed = " and no ".join(f"{name}_token" for name in names)
    raise LoadError(
        f"has no {listed} in special_tokens_map.json, tokenizer_config.json and config.json",
        file=str(directory),
    )


SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
QUESTION = "<Instruct>: {}\n<Query>: {}\n<Document>:"  # tokenised as one text, because tokens cross its seams
LEAD = " "  # before a document: the space belongs to its first token
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
WORDS = ("no", "yes")


class Template:
    """The tokens of the prompt around a query and a document."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = (tuple(r.tolist()) for r in tokenizer.encode([BEFORE, AFTER], False))
        ids = [row.tolist() for row in tokenizer.encode(list(WORDS), False)]
        if any(len(one) != 1 for one in ids):
            raise LoadError(f"a reranker by yes and no needs one token for each; this tokenizer has {ids}")
        self.answers = [one[0] for one in ids]  # those of WORDS

    def form(self, instruction: str, query: str) -> PairForm:
        """Return what stands around each document; the query is a part of it."""
        (question,) = self._tokenizer.encode([QUESTION.format(instruction or INSTRUCTION, query)], False)
        return PairForm((*self._before, *question.tolist()), (), self._after, typed=False)


def is_causal(model: ov.Model) -> bool:
    """Return whether the model answers with a logit per token of its vocabulary at each position."""
    return any("logits" in o.get_names() and len(o.get_partial_shape()) == 3 for o in model.outputs)


def cut(model: ov.Model, template: Template) -> tuple[ov.Model, NDArray[np.float32]]:
    """Return the model up to the last token's hidden state, [rows, hidden], and the weights [hidden, 2] that
    make the logits of no and yes of it.

    The product is left to float32 outside: in bf16 a logit of 20 has steps of 0.125. Raises LoadError.
    """
    logits = next(o for o in model.outputs if "logits" in o.get_names())
    head = _head(logits.get_node().input_value(0).get_node())
    hidden = models.last_shown(head.input_value(0), model.input("attention_mask"))
    weights = _weights(head, template.answers)
    inputs = [i.get_node() for i in model.inputs]
    return ov.Model([op.result(hidden)], model.get_sinks(), inputs, "causal_reranker"), weights


def _head(node: Any) -> Any:
    """The matrix of the logits. Raises LoadError where something else than a conversion follows it."""
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise LoadError(f"the logits are made by {node.get_type_name()}; expected a MatMul")
    return node


def _weights(head: Any, answers: list[int]) -> NDArray[np.float32]:
    """Compute the rows of two tokens, which may be stored in a compressed form."""
    by_row = bool(head.get_attributes()["transpose_b"])
    axis = op.constant(np.int64(0 if by_row else 1))
    rows = op.gather(head.input_value(1), op.constant(np.array(answers, np.int64)), axis)
    small = ov.Model([op.result(op.convert(rows, ov.Type.f32))], [], "answers")
    (product,) = ov.Core().compile_model(small, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({}).to_tuple()
    weights: NDArray[np.float32] = product.T.copy() if by_row else product.copy()
    return weights


IDENTITY = "Identity"  # the activation of cross-encoders whose scores are logits
KNOWN_ACTIVATIONS = ("", IDENTITY, "Sigmoid")


class Chunks(NamedTuple):
    """The rows of one request, and the document of each."""

    rows: list[Row]
    types: list[int]
    owners: list[int]
    query_cut: bool = False
    documents_cut: int = 0


class Pairs(NamedTuple):
    """The rows of SCORE, where the second text of each begins, and how many were cut."""

    rows: list[Row]
    types: list[int]
    cut: int = 0


class RerankBackend(EncoderBackend):
    noun = "a reranker"

    def __init__(self, spec: RerankSpec) -> None:
        super().__init__(spec.model_path)
        files = self.files
        model = models.read(self.directory)
        self.form, kind = JOINED, "joined"
        self._template: Template | None = None
        self._answers: NDArray[np.float32] | None = None  # of a causal model: hidden state to no and yes
        if is_causal(model):
            self._template, kind = Template(self.tokenizer), CAUSAL
            model, self._answers = cut(model, self._template)
            self.form = self._template.form("", "")
        else:
            model = models.logits(model, most=2)
            if files.add_bos_token:
                self.form, kind = pair_form(self.directory, self.tokenizer, files.model_type), "cross-encoder"
        if files.activation not in KNOWN_ACTIVATIONS:
            print(f"scores are sigmoids: activation {files.activation} of config.json is unknown")  # noqa: T201
        self.limit = min(spec.max_position_embeddings or files.max_length, files.max_length)
        if self.limit <= 2 * self.form.special:
            raise LoadError(
                f"a pair of {self.limit} tokens has no room for a query and a document beside "
                f"{self.form.special} special tokens",
                field="max_position_embeddings",
            )
        row, start = self.form.row(np.zeros(1, np.int32), np.zeros(1, np.int32))
        self.start(model, spec, Job([row], [start]))
        self.facts = RerankFacts(
            **self.common_facts(), max_length=self.limit, form=kind, query_limit=self.limit // 2
        )

    def methods(self) -> dict[str, Callable[[Invocation], Any]]:
        return {RERANK: self._rank, SCORE: self._score}

    def _rank(self, invocation: Invocation) -> Result:
        arguments = invocation.arguments(RerankArguments)
        documents = decoded(invocation.blobs[0], list[str])
        chunks = (
            self._joined(arguments, documents) if self.form is JOINED else self._chunks(arguments, documents)
        )
        if len(chunks.rows) > arguments.max_chunks:
            raise InvalidArgument(
                "Chunking failed: exceeding max_allowed_chunks after chunking limit: "
                f"{arguments.max_chunks}; "
                f"actual: {len(chunks.rows)}",
                param="documents",
            )
        values = self.values(invocation, Job(chunks.rows, chunks.types))
        best = np.full(len(documents), -np.inf, np.float32)
        np.maximum.at(best, chunks.owners, self._logits(values))
        scores = _scores(best, raw=arguments.raw)
        answer = RerankAnswer(
            tokens=sum(map(len, chunks.rows)),
            chunks=len(chunks.rows),
            query_cut=chunks.query_cut,
            documents_cut=chunks.documents_cut,
            batches=self.runner.counts(),
        )
        return Result(answer, (scores.astype("<f4").tobytes(),))

    def _score(self, invocation: Invocation) -> Result:
        arguments = invocation.arguments(ScoreArguments)
        texts = decoded(invocation.blobs[0], tuple[list[str], list[str]])
        pairs = (self._joined_pairs if self.form is JOINED else self._pairs)(arguments, *texts)
        values = self.values(invocation, Job(pairs.rows, pairs.types))
        raw = arguments.raw or self.files.activation == IDENTITY
        scores = _scores(self._logits(values), raw=raw)
        answer = ScoreAnswer(sum(map(len, pairs.rows)), pairs.cut, self.runner.counts())
        return Result(answer, (scores.astype("<f4").tobytes(),))

    def _logits(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return logits(values if self._answers is None else values @ self._answers)

    def _pairs(self, arguments: ScoreArguments, first: list[str], second: list[str]) -> Pairs:
        """Raises ContextLengthExceeded for a pair that is too long, unless it may be cut."""
        most = min(arguments.truncate or self.limit, self.limit)
        forms, queries = self._questions(arguments, first)
        if self._template is not None:
            second = [LEAD + text for text in second]
        documents = self.tokenized(second, most, arguments.names[1], special=False)
        pairs = Pairs([], [])
        for i, document in enumerate(documents):
            at = i if len(first) > 1 else 0
            form, query = forms[at if len(forms) > 1 else 0], queries[at]
            cut = query[: arguments.max_first], document[: arguments.max_second]
            if form.special > self.limit:
                raise ContextLengthExceeded(
                    f"{arguments.names[0]}[{at}]: {form.special} tokens with the template leave no room "
                    f"within {self.limit}",
                    param=f"{arguments.names[0]}[{at}]",
                )
            room = most - form.special
            if arguments.truncate is None and len(cut[0]) + len(cut[1]) > room:
                raise ContextLengthExceeded(
                    f"{arguments.names[1]}[{i}]: {form.special + len(cut[0]) + len(cut[1])} tokens with "
                    f"{arguments.names[0]}[{at}], and this model reads at most {self.limit}",
                    param=f"{arguments.names[1]}[{i}]",
                )
            if arguments.truncate and room < 1:
                raise InvalidArgument.at(
                    "truncate_prompt_tokens",
                    f"expected more than the {form.special} tokens around the texts, got {most}",
                )
            lengths = longest_first(len(cut[0]), len(cut[1]), room)
            row, start = form.row(cut[0][: lengths[0]], cut[1][: lengths[1]])
            pairs.rows.append(row)
            pairs.types.append(start)
            pairs = pairs._replace(cut=pairs.cut + (len(row) < form.special + len(query) + len(document)))
        return pairs

    def _questions(self, arguments: ScoreArguments, texts: list[str]) -> tuple[list[PairForm], list[Row]]:
        """Return the form of pairs, one for all or one for each text, and the tokens of the texts in it."""
        rows = self.tokenized(texts, self.limit, arguments.names[0], special=False)
        if self._template is None:
            return [self.form], rows
        nothing = np.zeros(0, np.int32)
        return [self._template.form(arguments.instruction, text) for text in texts], [nothing] * len(texts)

    def _joined_pairs(self, arguments: ScoreArguments, first: list[str], second: list[str]) -> Pairs:
        pairs = Pairs([], [])
        for i, text in enumerate(second):
            where = f"{arguments.names[1]}[{i}]"
            joined = first[i if len(first) > 1 else 0] + text
            (row,) = self.tokenized([joined], self.limit, where, special=False, listed=False)
            if not 0 < len(row) <= self.limit and (arguments.truncate is None or not len(row)):
                raise ContextLengthExceeded.at(
                    where, f"{len(row)} tokens with {arguments.names[0]}, of at most {self.limit}"
                )
            cut = row[: min(arguments.truncate or self.limit, self.limit)]
            pairs.rows.append(cut)
            pairs.types.append(len(cut))
            pairs = pairs._replace(cut=pairs.cut + (len(cut) < len(row)))
        return pairs

    def _chunks(self, arguments: RerankArguments, documents: list[str]) -> Chunks:
        """Split documents so that each piece fits together with the query and the special tokens."""
        form, query, cut = self._question(arguments)
        room = self.limit - form.special - len(query)
        if room < 1:
            raise ContextLengthExceeded.at(
                "query", f"{form.special} tokens with the template leave no room within {self.limit}"
            )
        chunks = Chunks([], [], [], query_cut=cut)
        shortened = 0
        if self._template is not None:
            documents = [LEAD + text for text in documents]
        for owner, ids in enumerate(
            self.tokenized(documents, arguments.max_chunks * room, "documents", special=False)
        ):
            limited = ids[: arguments.max_tokens_per_document]
            pieces = [limited[i : i + room] for i in range(0, max(1, len(limited)), room)]
            used_pieces = pieces[: arguments.max_chunks_per_document]
            shortened += len(limited) < len(ids) or len(used_pieces) < len(pieces)
            for piece in used_pieces:
                row, start = form.row(query, piece)
                chunks.rows.append(row)
                chunks.types.append(start)
                chunks.owners.append(owner)
        return chunks._replace(documents_cut=shortened)

    def _question(self, arguments: RerankArguments) -> tuple[PairForm, Row, bool]:
        """Return the form of the pairs, the tokens of the query, and whether it was cut to half the limit."""
        if self._template is not None:
            self.tokenized(
                [arguments.query], self.limit, "query", special=False, listed=False
            )  # not too large
            return self._template.form(arguments.instruction, arguments.query), np.zeros(0, np.int32), False
        most = self.limit // 2
        (query,) = self.tokenized([arguments.query], most, "query", special=False, listed=False)
        return self.form, query[:most], len(query) > most

    def _joined(self, arguments: RerankArguments, documents: list[str]) -> Chunks:
        """The form of `add_bos_token: false`: the client has written the model's template."""
        rows = self.tokenized(
            [arguments.query + text for text in documents], self.limit, "documents", special=False
        )
        for i, row in enumerate(rows):
            if not 0 < len(row) <= self.limit:
                raise ContextLengthExceeded(
                    f"documents[{i}]: {len(row)} tokens with the query, of at most {self.limit}",
                    param=f"documents[{i}]",
                )
        return Chunks(rows, [len(row) for row in rows], list(range(len(rows))))


def _scores(values: NDArray[np.float32], *, raw: bool) -> NDArray[np.float32]:
    """Return logits as they are or as values from 0 to 1. Raises Internal for one that is not finite."""
    if not np.isfinite(values).all():
        raise Internal("the model answered with a score that is not finite")
    return values if raw else sigmoid(values)


def logits(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return one logit per row; of two labels, that of the second against the first."""
    scores: NDArray[np.float32] = values[:, 0] if values.shape[1] == 1 else values[:, 1] - values[:, 0]
    return scores

"""The engine of rerankers: pairs of a query and a document to scores.

Rows of all requests share the pool of `runner.py`, so documents of different requests are batched together.
RERANK splits a document that is too long, and its best piece counts. SCORE takes each pair as one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.host.device_properties import properties_of
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import (
    CAUSAL,
    RERANK,
    SCORE,
    RerankAnswer,
    RerankArguments,
    RerankFacts,
    RerankSpec,
    ScoreAnswer,
    ScoreArguments,
)
from ovserve.kinds.encoders.worker import causal
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.encoder_backend import EncoderBackend, Left, decoded, sigmoid
from ovserve.kinds.encoders.worker.pairs import JOINED, PairForm, longest_first, pair_form
from ovserve.kinds.encoders.worker.pool import Job
from ovserve.kinds.encoders.worker.runner import Runner
from ovserve.kinds.encoders.worker.tokens import Row

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
    def __init__(self, spec: RerankSpec) -> None:
        super().__init__(spec.model_path)
        files = self.files
        model = models.read(self.directory)
        self.form, kind = JOINED, "joined"
        self._template: causal.Template | None = None
        self._answers: NDArray[np.float32] | None = None  # of a causal model: hidden state to no and yes
        if causal.is_causal(model):
            self._template, kind = causal.Template(self.tokenizer), CAUSAL
            model, self._answers = causal.cut(model, self._template)
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
        properties = properties_of(spec.properties, spec.device)
        self.runner = Runner(model, spec.device, properties, files.pad_token_id)
        row, start = self.form.row(np.zeros(1, np.int32), np.zeros(1, np.int32))
        probe = Job([row], [start])
        self.runner.submit(probe)
        probe.done.wait()
        if probe.results is None:
            raise Internal(str(probe.error))
        self.facts = RerankFacts(
            **self.common_facts(), max_length=self.limit, form=kind, query_limit=self.limit // 2
        )

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if (tokens := self.token_call(invocation)) is not None:
            yield from tokens
            return
        if invocation.method == SCORE:
            yield from self._score(invocation)
            return
        if invocation.method != RERANK:
            raise InvalidArgument(f"a reranker has no method {invocation.method!r}")
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
        try:
            values = self.values(invocation, Job(chunks.rows, chunks.types))
        except Left:
            return
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
        yield Result(answer, (scores.astype("<f4").tobytes(),))

    def _score(self, invocation: Invocation) -> Iterator[Any]:
        arguments = invocation.arguments(ScoreArguments)
        texts = decoded(invocation.blobs[0], tuple[list[str], list[str]])
        pairs = (self._joined_pairs if self.form is JOINED else self._pairs)(arguments, *texts)
        try:
            values = self.values(invocation, Job(pairs.rows, pairs.types))
        except Left:
            return
        raw = arguments.raw or self.files.activation == IDENTITY
        scores = _scores(self._logits(values), raw=raw)
        answer = ScoreAnswer(sum(map(len, pairs.rows)), pairs.cut, self.runner.counts())
        yield Result(answer, (scores.astype("<f4").tobytes(),))

    def _logits(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return logits(values if self._answers is None else values @ self._answers)

    def _pairs(self, arguments: ScoreArguments, first: list[str], second: list[str]) -> Pairs:
        """Raises ContextLengthExceeded for a pair that is too long, unless it may be cut."""
        most = min(arguments.truncate or self.limit, self.limit)
        forms, queries = self._questions(arguments, first)
        if self._template is not None:
            second = [causal.LEAD + text for text in second]
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
                raise InvalidArgument(
                    f"truncate_prompt_tokens: expected more than the {form.special} tokens around the texts, "
                    f"got {most}",
                    param="truncate_prompt_tokens",
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
                raise ContextLengthExceeded(
                    f"{where}: {len(row)} tokens with {arguments.names[0]}, of at most {self.limit}",
                    param=where,
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
            raise ContextLengthExceeded(
                f"query: {form.special} tokens with the template leave no room within {self.limit}",
                param="query",
            )
        chunks = Chunks([], [], [], query_cut=cut)
        shortened = 0
        if self._template is not None:
            documents = [causal.LEAD + text for text in documents]
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

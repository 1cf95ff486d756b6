"""The engine of rerankers: pairs of a query and a document to scores.

Rows of all requests share the pool of `runner.py`, so documents of different requests are batched together.
A document that is too long is split, and its best piece counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import (
    CAUSAL,
    RERANK,
    RerankAnswer,
    RerankArguments,
    RerankFacts,
    RerankSpec,
)
from ovserve.kinds.encoders.worker import causal
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.encoder_backend import EncoderBackend, Left, decoded
from ovserve.kinds.encoders.worker.pairs import JOINED, PairForm, pair_form
from ovserve.kinds.encoders.worker.pool import Job
from ovserve.kinds.encoders.worker.runner import Runner
from ovserve.kinds.encoders.worker.tokens import Row


class Chunks(NamedTuple):
    """The rows of one request, and the document of each."""

    rows: list[Row]
    types: list[int]
    owners: list[int]
    query_cut: bool = False
    documents_cut: int = 0


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
            model = models.scores(model)
            if files.add_bos_token:
                self.form, kind = pair_form(self.directory, self.tokenizer, files.model_type), "cross-encoder"
        self.limit = min(spec.max_position_embeddings or files.max_length, files.max_length)
        if self.limit <= 2 * self.form.special:
            raise LoadError(
                f"a pair of {self.limit} tokens has no room for a query and a document beside "
                f"{self.form.special} special tokens",
                field="max_position_embeddings",
            )
        properties = models.properties_of(spec.properties, spec.device)
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
        if invocation.method != RERANK:
            raise InvalidArgument(f"a reranker has no method {invocation.method!r}")
        asked = invocation.arguments(RerankArguments)
        documents = decoded(invocation.blobs[0], list[str])
        chunks = self._joined(asked, documents) if self.form is JOINED else self._chunks(asked, documents)
        if len(chunks.rows) > asked.max_chunks:
            raise InvalidArgument(
                f"Chunking failed: exceeding max_allowed_chunks after chunking limit: {asked.max_chunks}; "
                f"actual: {len(chunks.rows)}",
                param="documents",
            )
        try:
            values = self.values(invocation, Job(chunks.rows, chunks.types))
        except Left:
            return
        best = np.full(len(documents), -np.inf, np.float32)
        np.maximum.at(
            best, chunks.owners, logits(values if self._answers is None else values @ self._answers)
        )
        if not np.isfinite(best).all():
            raise Internal("the model answered with a score that is not finite")
        scores = best if asked.raw else 1 / (1 + np.exp(-best))
        answer = RerankAnswer(
            tokens=sum(map(len, chunks.rows)),
            chunks=len(chunks.rows),
            query_cut=chunks.query_cut,
            documents_cut=chunks.documents_cut,
            batches=self.runner.counts(),
        )
        yield Result(answer, (scores.astype("<f4").tobytes(),))

    def _chunks(self, asked: RerankArguments, documents: list[str]) -> Chunks:
        """Split documents so that each piece fits together with the query and the special tokens."""
        form, query, cut = self._question(asked)
        room = self.limit - form.special - len(query)
        if room < 1:
            raise ContextLengthExceeded(
                f"query: {form.special} tokens with the template leave no room within {self.limit}",
                param="query",
            )
        made = Chunks([], [], [], query_cut=cut)
        shortened = 0
        if self._template is not None:
            documents = [causal.LEAD + text for text in documents]
        for owner, ids in enumerate(
            self.tokenized(documents, asked.max_chunks * room, "documents", special=False)
        ):
            given = ids[: asked.max_tokens_per_document]
            pieces = [given[i : i + room] for i in range(0, max(1, len(given)), room)]
            kept = pieces[: asked.max_chunks_per_document]
            shortened += len(given) < len(ids) or len(kept) < len(pieces)
            for piece in kept:
                row, start = form.row(query, piece)
                made.rows.append(row)
                made.types.append(start)
                made.owners.append(owner)
        return made._replace(documents_cut=shortened)

    def _question(self, asked: RerankArguments) -> tuple[PairForm, Row, bool]:
        """Return the form of the pairs, the tokens of the query, and whether it was cut to half the limit."""
        if self._template is not None:
            self.tokenized([asked.query], self.limit, "query", special=False, listed=False)  # not too large
            return self._template.form(asked.instruction, asked.query), np.zeros(0, np.int32), False
        most = self.limit // 2
        (query,) = self.tokenized([asked.query], most, "query", special=False, listed=False)
        return self.form, query[:most], len(query) > most

    def _joined(self, asked: RerankArguments, documents: list[str]) -> Chunks:
        """The form of `add_bos_token: false`: the client has written the model's template."""
        rows = self.tokenized(
            [asked.query + text for text in documents], self.limit, "documents", special=False
        )
        for i, row in enumerate(rows):
            if not 0 < len(row) <= self.limit:
                raise ContextLengthExceeded(
                    f"documents[{i}]: {len(row)} tokens with the query, of at most {self.limit}",
                    param=f"documents[{i}]",
                )
        return Chunks(rows, [len(row) for row in rows], list(range(len(rows))))


def logits(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return one logit per row; of two labels, that of the second against the first."""
    made: NDArray[np.float32] = values[:, 0] if values.shape[1] == 1 else values[:, 1] - values[:, 0]
    return made

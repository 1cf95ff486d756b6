"""Counters of embeddings and rerankers."""

from __future__ import annotations

from collections.abc import Iterable

from ovserve.telemetry.metrics import TO_FIRST_TOKEN, TOKENS, Family, Histogram, value


class EncoderMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.inputs = 0  # texts that were embedded
        self.tokens = 0  # of all inputs, without padding
        self.truncated = 0  # inputs that were cut
        self.documents = 0  # ranked
        self.chunks = 0  # pairs of a query and a piece of a document
        self.pairs = 0  # of texts, that were scored
        self.classified = 0  # texts
        self.batch_tokens = Histogram(TOKENS)  # per inference, padding included
        self.run_tokens = 0  # of all inferences, without padding
        self.queue_seconds = Histogram(TO_FIRST_TOKEN)  # in the engine, before the first inference

    def ran(self, padded: Iterable[int], tokens: int, waited: Iterable[float]) -> None:
        """Add the inferences that an engine reports."""
        for size in padded:
            self.batch_tokens.observe(size)
        for seconds in waited:
            self.queue_seconds.observe(seconds)
        self.run_tokens += tokens


FAMILIES: tuple[Family[EncoderMetrics], ...] = (
    Family(
        "ovserve_embedding_inputs_total",
        "counter",
        "Texts, or lists of token ids, that were embedded.",
        value(lambda m: m.inputs),
    ),
    Family(
        "ovserve_embedding_tokens_total",
        "counter",
        "Tokens of inputs and of pairs, without padding.",
        value(lambda m: m.tokens),
    ),
    Family(
        "ovserve_embedding_truncated_total",
        "counter",
        "Inputs that were cut to the model's limit, or to the one of the request.",
        value(lambda m: m.truncated),
    ),
    Family(
        "ovserve_rerank_documents_total",
        "counter",
        "Documents that were ranked.",
        value(lambda m: m.documents),
    ),
    Family(
        "ovserve_rerank_chunks_total",
        "counter",
        "Pairs of a query and a document, or a piece of a long one.",
        value(lambda m: m.chunks),
    ),
    Family(
        "ovserve_score_pairs_total",
        "counter",
        "Pairs of texts that were scored.",
        value(lambda m: m.pairs),
    ),
    Family(
        "ovserve_classify_inputs_total",
        "counter",
        "Texts, or lists of token ids, that were classified.",
        value(lambda m: m.classified),
    ),
    Family(
        "ovserve_embedding_batch_tokens",
        "histogram",
        "Tokens per inference, padding included.",
        value(lambda m: m.batch_tokens),
    ),
    Family(
        "ovserve_embedding_batch_true_tokens_total",
        "counter",
        "Tokens of all inferences, without padding.",
        value(lambda m: m.run_tokens),
    ),
    Family(
        "ovserve_embedding_queue_seconds",
        "histogram",
        "Seconds from a call's arrival in the engine to its first inference.",
        value(lambda m: m.queue_seconds),
    ),
)

"""Counters of embeddings and rerankers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ovserve.telemetry.metrics import TO_FIRST_TOKEN, TOKENS, Histogram, counter, histogram


@dataclass(eq=False)
class EncoderMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    inputs: int = counter(
        "ovserve_embedding_inputs_total", "Texts, or lists of token ids, that were embedded."
    )
    tokens: int = counter("ovserve_embedding_tokens_total", "Tokens of inputs and of pairs, without padding.")
    truncated: int = counter(
        "ovserve_embedding_truncated_total",
        "Inputs that were cut to the model's limit, or to the one of the request.",
    )
    documents: int = counter("ovserve_rerank_documents_total", "Documents that were ranked.")
    chunks: int = counter(
        "ovserve_rerank_chunks_total", "Pairs of a query and a document, or a piece of a long one."
    )
    pairs: int = counter("ovserve_score_pairs_total", "Pairs of texts that were scored.")
    classified: int = counter(
        "ovserve_classify_inputs_total", "Texts, or lists of token ids, that were classified."
    )
    batch_tokens: Histogram = histogram(
        "ovserve_embedding_batch_tokens", "Tokens per inference, padding included.", TOKENS
    )
    run_tokens: int = counter(
        "ovserve_embedding_batch_true_tokens_total", "Tokens of all inferences, without padding."
    )
    queue_seconds: Histogram = histogram(
        "ovserve_embedding_queue_seconds",
        "Seconds from a call's arrival in the engine to its first inference.",
        TO_FIRST_TOKEN,
    )

    def ran(self, padded: Iterable[int], tokens: int, waited: Iterable[float]) -> None:
        """Add the inferences that an engine reports."""
        for size in padded:
            self.batch_tokens.observe(size)
        for seconds in waited:
            self.queue_seconds.observe(seconds)
        self.run_tokens += tokens

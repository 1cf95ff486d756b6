"""The metrics of engines that encode text: embeddings and rerankers. OVMS has none for them."""

from __future__ import annotations

from ovserve.monitoring.family import Family, value

FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_embedding_inputs_total",
        "counter",
        "Texts, or lists of token ids, that were embedded.",
        value(lambda m: m.metrics.encoder.inputs),
    ),
    Family(
        "ovserve_embedding_tokens_total",
        "counter",
        "Tokens of inputs and of pairs, without padding.",
        value(lambda m: m.metrics.encoder.tokens),
    ),
    Family(
        "ovserve_embedding_truncated_total",
        "counter",
        "Inputs that were cut to the model's limit, or to the one of the request.",
        value(lambda m: m.metrics.encoder.truncated),
    ),
    Family(
        "ovserve_rerank_documents_total",
        "counter",
        "Documents that were ranked.",
        value(lambda m: m.metrics.encoder.documents),
    ),
    Family(
        "ovserve_rerank_chunks_total",
        "counter",
        "Pairs of a query and a document, or a piece of a long one.",
        value(lambda m: m.metrics.encoder.chunks),
    ),
    Family(
        "ovserve_embedding_batch_tokens",
        "histogram",
        "Tokens per inference, padding included.",
        value(lambda m: m.metrics.encoder.batch_tokens),
    ),
    Family(
        "ovserve_embedding_batch_true_tokens_total",
        "counter",
        "Tokens of all inferences, without padding.",
        value(lambda m: m.metrics.encoder.run_tokens),
    ),
    Family(
        "ovserve_embedding_queue_seconds",
        "histogram",
        "Seconds from a call's arrival in the engine to its first inference.",
        value(lambda m: m.metrics.encoder.queue_seconds),
    ),
)

"""Measurements of engines that encode text, per servable: what embeddings and rerankers have read and run."""

from __future__ import annotations

from collections.abc import Iterable

from ovserve.telemetry.histogram import TO_FIRST_TOKEN, TOKENS, Histogram


class EncoderMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.inputs = 0  # texts that were embedded
        self.tokens = 0  # of all inputs, without padding
        self.truncated = 0  # inputs that were cut
        self.documents = 0  # ranked
        self.chunks = 0  # pairs of a query and a piece of a document
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

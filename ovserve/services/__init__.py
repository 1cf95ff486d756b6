"""Shared by the transports: stored and background responses, batches, KServe operations, and metrics."""

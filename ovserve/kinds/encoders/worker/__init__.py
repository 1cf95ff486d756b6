"""Encoders on the OpenVINO runtime: embeddings and rerankers, with batches pooled over all requests."""

"""Encoders: embeddings and rerankers."""

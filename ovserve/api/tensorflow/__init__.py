"""TensorFlow Serving's REST API of plain models: bodies of predict calls, metadata and status.

OVMS has removed this API in 2026.3; clients of it are still there.
Source: https://www.tensorflow.org/tfx/serving/api_rest, read 2026-11-22 as described in docs/plain-models.md.
"""

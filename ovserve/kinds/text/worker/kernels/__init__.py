"""Kernels of our own for quantised weights, next to OpenVINO's."""

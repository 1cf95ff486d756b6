"""Conversion of .gguf files to OpenVINO IR, in a process of its own: `convert.py`."""

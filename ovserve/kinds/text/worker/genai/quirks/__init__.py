"""Workarounds for OpenVINO GenAI, one file each.

A file states what the library does, how it was seen, in which versions, and when it can go.

- `capacity`: the library does not report how many tokens its KV cache holds.
- `converter`: `import openvino` imports its converter of models, for 0.08 s.
- `empty_read`: `read()` on an empty handle blocks for ever.
- `partial_prefill`: a prompt that is cancelled half read leaves a wrong block in the prefix cache.
- `poisoned_step`: what raises in a step takes every running request with it.
- `read_only_gguf`: a .gguf file is opened for writing.

What the library does where it lacks room is in `continuous.py`. Workarounds of grammars are in `grammar.py`,
those of images in `vision.py`, those of the stateful pipelines in `stateful.py`.
"""

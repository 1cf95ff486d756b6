"""Workarounds for OpenVINO GenAI, one file each.

A file states what the library does, how it was seen, in which versions, and when it can go.

- `capacity`: the library does not report how many tokens its KV cache holds.
- `converter`: `import openvino` imports its converter of models, for 0.08 s.
- `dropped`: a step without room drops every request that the library has.
- `empty_read`: `read()` on an empty handle blocks for ever.
- `eviction`: a step raises when a request loses its blocks while cache eviction is on.
- `left_out`: a request with drafts that is left out of a step gets text that was not checked.
- `overtaking`: a prompt that is being read keeps all later ones waiting, and cannot be paused.
- `poisoned_step`: what raises in a step takes every running request with it.
- `read_only_gguf`: a .gguf file is opened for writing.
- `uncached`: a prefix cache hit has no log-probabilities.

Those of grammars are in `grammar.py`, those of images in `vision.py`, those of the stateful pipelines in
`stateful.py`.
"""

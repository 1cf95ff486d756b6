"""Facts from the files of a model, without loading it.

- `files`: OpenVINO IR
- `gguf`: GGUF
- `script`: the scripted engine
"""

"""What the files of a model say, without loading it.

- `files`: OpenVINO IR
- `gguf`: GGUF
- `script`: the scripted engine
"""

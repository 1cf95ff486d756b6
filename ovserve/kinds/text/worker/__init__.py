"""The engines of text: `paged` is our own step loop, `genai` the pipelines of OpenVINO GenAI.

`scripted` answers from a file, for tests. `gguf/` converts files, and `decoding.py` turns tokens into text.
"""

"""The engines of text: `paged` is our own step loop, `genai` the pipelines of OpenVINO GenAI, `scripted` answers
from a file. `gguf/` converts files, and `decoding/` makes text of tokens for all of them.
"""

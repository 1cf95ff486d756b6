"""Backends: the code that an engine process runs, a folder or file per kind.

- `genai`: OpenVINO GenAI
- `scripted`: scripted answers, for tests and demonstrations
- `calls`: the base of backends that answer calls
"""

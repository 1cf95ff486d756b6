"""The engine process: `main` starts it, and the spec's kind chooses the conversation.

- `steps`: text generation
- `calls`: every other kind; `host`: the calls of several models
- `helper`: a process that only tokenises, or only compiles grammars
"""

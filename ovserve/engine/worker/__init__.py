"""The engine process: `main` starts it, and the spec's kind chooses the conversation.

- `steps`: text generation
- `calls`: every other kind
- `grammars`: a process that only compiles grammars
- `tokenizer`: one that only tokenises
- `admission_queue`, `batch_window`, `usage`: parts of the step conversation
"""

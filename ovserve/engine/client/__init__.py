"""The server's side of an engine: its process, its requests, and the restarts between.

- `client`: the supervisor of a process, and what a kind of engine adds
- `text`, `requests`, `mailbox`: text generation
- `calls`: every other kind
- `process`, `prewarm`, `early`: one process
- `health`, `grammars`, `tokenizer`: what runs next to it
"""

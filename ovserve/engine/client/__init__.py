"""The server's side of an engine: its process, its requests, and the restarts between.

- `client`: the supervisor of a process, and what a kind of engine adds
- `text`, `requests`, `mailbox`: text generation
- `calls`: every other kind
- `process`, `spawn`, `spare`: one process
- `health`, `grammars`: what runs next to it
- `host`, `hosts`: many small models in one process, each with an `EngineClient` of its own that handles its
  model as if it were a process; which process a model is loaded into
- `blame`: which model ended a process, and the return of one that may have
"""

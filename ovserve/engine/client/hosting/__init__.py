"""Many small models in one engine process, each with an `EngineClient` of its own.

- `host`: the process, and a model in it, which its client handles as if it were a process
- `hosts`: which process a model is loaded into, and which models have to be in one of their own
- `blame`: which model ended the process, and the return of one that may have
"""

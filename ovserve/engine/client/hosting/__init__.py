"""Many small models in one engine process, each with an `EngineClient` of its own.

- `hosted`: one model in such a process, which its client handles as if it were a process
- `host`: the process and the models in it
- `hosts`: which process a model is loaded into, and which models have to be in one of their own
- `blame`: which model ended the process, and the return of one that may have
"""

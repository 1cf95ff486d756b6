"""A room per kind of model: everything that is of one kind stands in one folder.

- `spec.py`: what an engine is started with, its facts, the arguments and answers of its calls, and what the
  files of a model say, without loading it
- `options.py`, `resource.py`, `node.py`: the options of a node, what its nodes share, and the calculator
- `api.py` and others: the bodies of its endpoints
- `worker/`: the backend, which runs in an engine process; nothing outside of it imports it, a spec names it

`resource.py` and `payload.py` here are what every kind builds on.
"""

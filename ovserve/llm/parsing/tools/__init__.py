"""The shipped tool dialects. `registry.py` has their order."""

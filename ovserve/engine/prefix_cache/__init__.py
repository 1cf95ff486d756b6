"""A model of the library's prefix cache, which reports how much of a prompt was cached.

- `model`: requests that come and go
- `scheduler`: what a step does
- `kv_blocks`: blocks and their names
"""

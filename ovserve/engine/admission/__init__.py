"""Admission between nodes and their engine: which requests wait, in what order, and for how long.

- `controller`: text generation
- `calls`: every other kind
- `fair_queue`: the order
- `throughput`: estimates of time
- `limits`, `stream`: of one graph, of one request
"""

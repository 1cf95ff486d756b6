"""Admission between nodes and their engine: which requests wait, in what order, and for how long.

- `controller`: the queue of one engine, the rejections and the deadlines
- `text`, `calls`: what text generation and every other kind have room for, and their admitted requests
- `fair_queue`: the order, and the limits of one graph
"""

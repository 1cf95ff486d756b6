"""Ray Serve: one replica is one `ovserve serve` process behind an ASGI pass-through (docs/clusters.md).

Ray is imported only in `app.py`, `replica.py` and `cluster.py`.
"""

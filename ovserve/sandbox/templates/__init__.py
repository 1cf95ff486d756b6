"""Chat templates, rendered in separate processes: `pool.py` is the server's side of them."""

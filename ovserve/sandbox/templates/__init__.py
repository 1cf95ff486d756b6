"""Chat templates are rendered here, in processes of their own: `pool.py` is the server's side of them."""

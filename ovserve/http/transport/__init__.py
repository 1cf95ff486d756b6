"""Sockets, TLS, connections, CORS and limits, below any route."""

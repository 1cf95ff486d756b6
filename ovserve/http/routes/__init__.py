"""The HTTP routes, a file per API."""

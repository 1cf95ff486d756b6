"""Programs besides the server.

- `bench`: `ovserve bench`
- `tuning`: `ovserve tune`
"""

"""Programs beside the server.

- `bench`: `ovserve bench`
- `tuning`: `ovserve tune`
"""

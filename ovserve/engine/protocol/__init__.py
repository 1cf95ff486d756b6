"""The protocol between the server and an engine process; both sides import it.

- `frames`: bytes to messages
- `messages`: every message
- `specs`: what an engine is started with
- `blobs`: tensors in shared memory
- `admission`: whether a request fits
"""

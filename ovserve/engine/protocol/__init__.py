"""The protocol between the server and an engine process; both sides import it.

- `launch`: the command line of an engine process
- `frames`: bytes to messages
- `messages`: every message
- `specs`: what an engine is started with
- `blobs`: tensors in shared memory
- `admission`: whether a request fits
- `call_backend`: the base of backends that answer calls
"""

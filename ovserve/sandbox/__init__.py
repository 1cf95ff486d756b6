"""Child processes for untrusted input, which the kernel ends when they take too long.

- `base`: the server's side of such a process
- `bodies`: large JSON request bodies
- `images`: pictures and documents
- `templates`: chat templates
"""

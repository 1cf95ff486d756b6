"""Functions on untrusted input, called in child processes that the kernel ends when they take too long.

- `pool`: the server's side of such processes; `worker`: the other; `messages`: between them
- `bodies`: large JSON request bodies
- `templates`: chat templates, by the functions of `rendering`
- `images`: pictures and documents
- `audio`: recordings
"""

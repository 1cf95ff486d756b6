"""Functions on untrusted input, called in child processes that the kernel ends when they take too long.

- `pool`: the server's side of such processes; `worker`: the other; `messages`: between them
- `bodies`: large JSON request bodies
- `templates`: chat templates, by the functions of `rendering`
- `images`: pictures and documents
- `audio_loader`, `audio_decoder`: recordings, to 16 kHz, one channel, 16 bits; WAV by numpy, other
  formats by the library `av`, of the extra `audio`
"""

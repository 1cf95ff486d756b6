"""The composition of the server, and its options.

- `settings`: an option each, with `environment`
- `build`: the parts of a server, made from settings
- `frontends`: HTTP and gRPC listeners
- `server`: start, run, stop
"""

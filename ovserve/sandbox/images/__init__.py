"""Images and files of requests: fetched under the operator's rules, and decoded in processes of their own.

`loader.py` is the server's handle on all of it; `policy.py` has the rules, `fetch.py` and `files.py` keep
them, `picture.py` and `document.py` decode in a process that `decoders.py` starts.
"""

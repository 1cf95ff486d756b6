"""Images and files of requests: fetched under the operator's rules, and decoded in separate processes.

`loader.py` is the server's handle on all of it. `policy.py` holds the rules, which `fetch.py` and `loader.py`
enforce. `documents.py` is what its processes run.
"""

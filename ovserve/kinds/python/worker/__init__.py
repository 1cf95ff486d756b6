"""The process of Python nodes: `handlers.py` calls the user's code, `engine.py` is the backend.

`pyovms.py` is what handlers import, `modules.py` loads their files, `output.py` marks what they print, and
`deadlines.py` ends calls that take too long.
"""

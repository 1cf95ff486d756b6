"""The process of Python nodes: `engine.py` is the backend, which calls the user's code.

`pyovms.py` is what handlers import, and `deadlines.py` ends calls that take too long.
"""

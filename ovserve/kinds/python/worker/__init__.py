"""The process of Python nodes: `engine.py` is the backend, which calls the user's code.

`pyovms.py` is what handlers import, and makes values of their answers.
"""

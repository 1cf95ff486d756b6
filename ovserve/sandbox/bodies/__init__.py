"""Limits on the content of a request's body, and the processes that decode large bodies.

`Bodies` is the interface of transports and calculators; `worker.py` is the other side.
"""

from ovserve.sandbox.bodies.bodies import HERE, Bodies, Head

__all__ = ["HERE", "Bodies", "Head"]

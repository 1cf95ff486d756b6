"""Bounds on what a request's body may hold, and the processes that decode large bodies.

`Bodies` is what the fronts and the calculators use; `worker.py` is the other side.
"""

from ovserve.sandbox.bodies.bodies import HERE, Bodies, Head

__all__ = ["HERE", "Bodies", "Head"]

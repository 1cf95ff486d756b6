"""ovserve: a graph-configured model server for OpenVINO models.

`docs/architecture.md` lists the packages, and describes a request's life.
"""

__version__ = "0.1.0"

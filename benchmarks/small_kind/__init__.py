"""A kind of engine for measuring: a small OpenVINO model that adds 1 to ten numbers. Used by `many_models.py`."""

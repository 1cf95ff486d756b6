"""`ovserve bench`: load on any server with OpenAI's chat/completions, measured by its clients.

`plan.py` draws the requests, `clients.py` sends them, `report.py` and `plot.py` present the results. The
numbers are of this machine, client included, so compare only what was measured in the same way.
"""

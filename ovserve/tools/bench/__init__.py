"""What `ovserve bench` does: load on any server with OpenAI's chat/completions, as its clients see it.

`plan.py` says what is asked and when, `clients.py` asks, `report.py` and `plot.py` tell. The numbers are of
this machine, client included, so compare only what was measured in the same way.
"""

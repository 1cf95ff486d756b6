"""`ovserve tune`: find by measurement which options of a graph are fastest on this machine.

`graph_file.py` finds the engine of the graph and what is worth trying on this processor. `run.py`
runs engines in turns under the load of `prompts.py`; `search.py` decides which wins. `graph_file.py` writes
the winner's graph, `report.py` shows the results.
"""

"""Which options of a graph are fastest on this machine, found by measuring; called by `ovserve tune`.

`target.py` finds the engine of the graph, `choices.py` what is worth trying on this processor, `arena.py`
runs engines in turns under the load of `load.py`, `search.py` decides who wins, `graph_file.py` writes the
winner's graph, `report.py` and `plot.py` show the evidence. `run.py` puts them together.
"""

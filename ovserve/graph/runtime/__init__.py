"""The run of a graph: packets, queues and the order in which nodes are called.

- `scheduler`: the six rules, a run and what its nodes have in common
- `nodes`: the kinds of nodes
- `streams`: packets of one stream, and who watches them
- `handlers`: which inputs a node waits for
- `executors`: threads
"""

"""The run of a graph: packets, queues and the order in which nodes are called.

- `scheduler`: the six rules
- `streams`: packets of one stream
- `handlers`: which inputs a node waits for
- `executors`: threads
- `inline_node`, `task_node`, `node_run`: one node of one run
"""

"""The configuration of what is served: config.json or YAML, a directory of graphs, or one graph."""

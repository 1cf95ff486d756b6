"""What is to be served: config.json or YAML, a directory of graphs, or one graph."""

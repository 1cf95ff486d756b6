"""Python nodes: code of a graph's author in a process of its own."""

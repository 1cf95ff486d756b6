"""Text generation: the nodes of a language model's graph, their options, and the engines in `worker/`."""

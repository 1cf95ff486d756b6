"""Node options of language models, parsed and checked once, when a graph is loaded."""

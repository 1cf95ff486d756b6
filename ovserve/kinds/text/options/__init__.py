"""Options of language models, parsed and checked once, when a graph is loaded."""

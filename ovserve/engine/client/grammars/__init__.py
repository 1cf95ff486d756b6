"""New grammars are compiled in a process of their own before an engine sees them."""

"""Long texts are tokenized in a process of their own, next to the engine."""

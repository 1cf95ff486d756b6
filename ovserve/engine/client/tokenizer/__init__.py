"""Long texts are tokenised in a process of their own, beside the engine."""

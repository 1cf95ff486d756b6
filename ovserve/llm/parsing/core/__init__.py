"""The parts that all dialects share: the cursor over a growing text, the scanner, the registry of
dialects."""

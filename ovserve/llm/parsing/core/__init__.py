"""What every dialect shares: the cursor over a growing text, the scanner, the registry of dialects."""

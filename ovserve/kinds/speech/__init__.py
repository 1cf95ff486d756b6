"""Speech to text: transcriptions and translations."""

"""Checks whether an engine process makes progress, and how much memory it holds."""

"""Decoding without the library: tokens to text, stop strings, and the budgets of a step."""

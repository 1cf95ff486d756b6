"""Decoding without the library: tokens to text, stop strings, repetitions, and counts of drafts."""

"""Text generation as plain functions and frozen data: no I/O, no async, no engine."""

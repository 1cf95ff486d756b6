"""Other notations of calls and values: Python literals and calls, XML-like tags."""

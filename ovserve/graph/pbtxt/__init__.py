"""The text format of graphs, parsed with positions so that an error names its line.

- `scanner`: text to entries
- `schema`: entries against the messages, old spellings mended
- `edit`: changes that keep the rest of a file
"""

"""The metrics page in Prometheus's text format.

- `families`: the table of them
- `scrape`: the text
"""

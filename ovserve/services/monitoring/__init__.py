"""The metrics page in Prometheus's text format.

- `family`: what a family is
- `families`: the table of them
- `scrape`: the text
"""

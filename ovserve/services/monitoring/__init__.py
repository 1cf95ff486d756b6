"""The metrics page in Prometheus's text format.

- `family`: what a family is
- `families`: the table of them
- `choice`: `--metrics_list`
- `scrape`: the text
"""

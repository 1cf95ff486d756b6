"""Plain counters, histograms and tracing; whoever has something to count imports this.

- `counters`: per servable, and of the requests of a model
- `metrics`: families and histograms
- `tracing`: OpenTelemetry spans
"""

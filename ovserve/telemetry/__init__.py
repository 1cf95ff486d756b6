"""Plain counters, histograms and tracing; whoever has something to count imports this.

- `metrics`: counters per servable and of the requests of a model, families and histograms
- `tracing`: OpenTelemetry spans
"""

"""Plain counters, histograms and tracing; whoever has something to count imports this.

- `counters`: per servable
- `histogram`: buckets
- `requests`: text generation
- `tracing`: OpenTelemetry spans
"""

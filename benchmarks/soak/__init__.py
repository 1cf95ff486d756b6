"""`make soak`: mixed traffic on a real server for an hour (MINUTES=...), and what grew meanwhile.

`python -m benchmarks.soak --minutes 5` starts `ovserve serve` with the default model and a scripted graph. It sends
chats, tools, long prompts, clients that leave, and reloads; samples memory, descriptors and latency; and judges
their slopes. Exit code 1 if something grows, or an answer is wrong. `site.py` is the server,
`traffic.py` the clients, `record.py` the samples, `report.py` slopes, text and PNG.
"""

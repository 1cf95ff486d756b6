"""Benchmarks of the server on the real default model; not collected by pytest.

    make bench          python -m tests.bench.compare     this server against the bare engine, alternating
    make bench-micro    python -m tests.bench.micro       what one request and one token cost in Python
    make bench-idle     python -m tests.bench.idle        what 1,000 idle connections cost beside a load
    make bench-peers    python -m tests.bench.peers       this server beside llama.cpp's and vLLM's
                        python -m tests.bench.profiling   where the server's time goes at 32 streams

Run them alone on the machine: two inference threads meet after every operator, so any other busy process
slows both sides, and not by the same amount.
"""

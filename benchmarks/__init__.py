"""Benchmarks of the server on the real default model; not collected by pytest.

    make bench          python -m benchmarks.compare     this server against the bare engine, alternating
    make bench-micro    python -m benchmarks.micro       what one request and one token cost in Python
    make bench-idle     python -m benchmarks.idle        what 1,000 idle connections cost during a load
    make bench-peers    python -m benchmarks.peers       this server, llama.cpp's and vLLM's
                        python -m benchmarks.peer_scenarios   conversations, schemas, tool calls
    make bench-real     python -m benchmarks.real_sizes  the same with models of 3 and 8 billion parameters
                        python -m benchmarks.few_tokens       forms of a model at few tokens a step
                        python -m benchmarks.fixed_shapes     plain models compiled for one shape
                        python -m benchmarks.profiling   where the server's time goes at 32 streams

Run them alone on the machine: two inference threads meet after every operator, so any other busy process
slows both sides, and not by the same amount.
"""

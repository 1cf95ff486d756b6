"""ovserve: a graph-configured model server for OpenVINO models.

The packages, in the order of the import table in `tests/test_architecture.py` (imports only point down):

    __main__                `python -m ovserve`, the same as the command `ovserve`
    cli                     the command line: one file per subcommand
    server                  builds everything, starts it, stops it in reverse order; the options
    http                    the HTTP server: routes, limits, errors to statuses, server-sent events
    grpc_api                the gRPC server: KServe's and Triton's services, health, reflection
    responses               stored and background responses
    inference               KServe's and Triton's operations on servables, shared by both servers
    monitoring              the metrics page in Prometheus's text format
    pull                    `ovserve pull`: downloads models and writes graphs for them
    tools                   `ovserve bench` and `ovserve tune`
    serving                 which servables exist and in what state
    calculators             the shipped graph nodes
    admission               the queue in front of an engine: fairness, bounds, estimates
    sandbox                 child processes for untrusted input: bodies, templates, images
    engine.client           the server's side of an engine: its process, mailboxes, restarts
    engine.worker           the engine process: its main loop and its admission queue
    engine.backends         what an engine process runs, a folder or file per kind
    engine.decoding         detokenizing, stop conditions, token budgets
    engine.model            what the files of a model say, without loading it
    engine.host             what the operating system says: CPU, memory, threads
    engine.protocol         frames, messages and specs, which both processes import
    api                     wire formats: OpenAI, Anthropic, Azure, KServe
    graph                   MediaPipe's graph model in Python; knows nothing of LLMs or HTTP
    llm                     text generation as plain functions: no I/O, no async
    telemetry               counters, histograms, tracing
    access                  API keys, limits, and the current request's context
    protos                  generated from `proto/`
    errors                  one tree of errors, with kinds instead of status numbers
    log                     log formatting with request ids

A request's life is described in `docs/architecture.md`.
"""

__version__ = "0.1.0"

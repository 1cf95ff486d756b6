"""ovserve: a graph-configured model server for OpenVINO models.

The packages, in the order of the import table in `tests/test_architecture.py` (imports only point down):

    __main__                `python -m ovserve`, the same as the command `ovserve`
    cli                     the command line: one file per subcommand
    deploy                  Ray clusters
    server                  builds everything, starts it, stops it in reverse order; the options
    http                    the HTTP server: routes, limits, errors to statuses, server-sent events
    grpc_api                the gRPC server: KServe's and Triton's services, health, reflection
    console                 pages about the server, in the browser
    tools                   `ovserve bench`, `doctor`, `explain` and `tune`
    services                shared by transports: stored responses, batches, KServe's operations, metrics page
    pull                    `ovserve pull`: downloads models and writes graphs for them
    serving                 which servables exist and in what state
    calculators             nodes to compose graphs with
    kinds                   a room per kind of model: nodes, options, bodies, counters
    engine.admission        the queue in front of an engine: fairness, bounds, estimates
    sandbox                 child processes for untrusted input: bodies, templates, images, audio
    engine.client           the server's side of an engine: its process, mailboxes, restarts
    engine.worker           the engine process: its main loop and its admission queue
    kinds.*.worker          what an engine process runs
    kinds.*.spec, files     what both processes know of a kind
    engine.model            what the files of a model say, without loading it
    engine.host             what the operating system says: CPU, memory, threads
    engine.protocol         frames, messages and specs, which both processes import
    api                     wire formats: OpenAI, Anthropic, Azure, Ollama, KServe
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

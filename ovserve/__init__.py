"""ovserve: a graph-configured model server for OpenVINO models.

The packages, in the order a request meets them (imports only ever point down this list):

    cli, settings   the command line; one `Settings` field per option
    server          builds everything, starts it, stops it in reverse order
    fronts          what clients talk to, built while the first engine loads
    rest            aiohttp front: routes, limits, errors to statuses, server-sent events
    rpc             gRPC front: KServe's and Triton's services, health, reflection
    pull            `ovserve pull`: fetches models, writes graphs for them
    tuning, bench   `ovserve tune` and `ovserve bench`: which options are fastest; load on any server
    serving         which servables exist and in what state
    calculators     the graph nodes shipped with the server; thin shells over what follows
    templating      chat templates, rendered in processes that can be ended
    azure           Azure AI Model Inference's wire format, made of openai's parts
    anthropic       Anthropic's, made of them too
    kserve          KServe's v2 wire: tensors, infer requests and responses
    graph           MediaPipe's model in Python: packets, calculators, scheduler; knows nothing of LLMs
    engine          the other process: OpenVINO GenAI's continuous batching behind a socket
    openai          OpenAI's wire format: structs and pure mapping
    llm             text generation as plain functions
    protos          generated from proto/
    errors, log     the error tree (kinds, no status numbers) and log formatting
    metrics         histograms that are cheap to fill

A request's life is told in docs/architecture.md.
"""

__version__ = "0.1.0"

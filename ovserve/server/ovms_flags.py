"""The flags of OVMS that are not options here, and why; read by `cli/serve.py` and `cli/pull.py`.

A flag without a meaning in this server is accepted with a warning, so that a command line of OVMS can be used
as it is. One that asks for something this server would not do is rejected, with the way to get it: to start
and serve something else than was asked for is worse than not to start.
"""

from __future__ import annotations

_ONE_LOOP = "one event loop serves all connections, and the engine has its own process"
_PREPARE = "run `ovserve pull` first, with the flags of OVMS's --pull (docs/pull.md), then `serve` its result"

# Of `ovserve pull` too.
MODEL_WITHOUT_EFFECT = {"model_type": "the model's files say which kind of speech model it is"}
MODEL_REFUSED = {
    "vocoder": "SpeechT5 is not converted here; `optimum-cli export` writes it with its vocoder",
}

WITHOUT_EFFECT = {
    **MODEL_WITHOUT_EFFECT,
    "disable_input_count_validation": "a request always has to give every input of a model",
    "grpc_workers": _ONE_LOOP,
    "grpc_max_threads": _ONE_LOOP,
    "grpc_memory_quota": "the size of a message is limited instead",
    "rest_workers": _ONE_LOOP,
    "custom_node_resources_cleaner_interval_seconds": "there are no custom nodes in C++",
    "verbose_response": "answers never hold the rendered prompt",
    "trace_path": "spans go to a collector, see --otlp_traces_endpoint",
}

REFUSED = {
    **MODEL_REFUSED,
    "cpu_extension": "libraries with operations of your own are not loaded",
    **dict.fromkeys(("pull", "configure"), "`ovserve pull` writes a graph.pbtxt; `serve` needs none"),
    **dict.fromkeys(
        ("gguf_filename", "source_loras", "weight-format", "extra_quantization_params", "overwrite_models"),
        _PREPARE,
    ),
    **dict.fromkeys(("draft_source_model", "draft_model_path"), _PREPARE),
}

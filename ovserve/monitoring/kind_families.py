"""Families of the kinds of models, of KV caches and of graphs that are unloaded while they are idle. OVMS has
the metrics of text generation and of idle graphs only."""

from __future__ import annotations

from collections.abc import Iterator

from ovserve.engine.protocol.specs import TextFacts, TextSpec, block_tokens
from ovserve.monitoring.family import Family, Model, Sample, by_label, value


def _config(model: Model) -> list[Sample]:
    """Return one sample for the first language model that has a cache.

    Endpoint pickers and autoscalers multiply both labels to get the tokens that fit into the cache.
    """
    for engine in model.servable.engines.values() if model.servable else ():
        spec, facts = engine.spec, engine.facts
        if isinstance(spec, TextSpec) and isinstance(facts, TextFacts):
            size = block_tokens(spec.device)
            blocks = spec.num_kv_blocks or facts.cache_tokens // size
            return [((str(size), str(blocks)), 1)]
    return []


CACHE_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_prefix_cache_queries_total",
        "counter",
        "Tokens of prompts looked up in the prefix cache.",
        value(lambda m: m.metrics.meter.prefix_queries),
        vllm="vllm:prefix_cache_queries_total",
    ),
    Family(
        "ovserve_prefix_cache_hits_total",
        "counter",
        "Of the tokens looked up, those found, which are not computed again.",
        value(lambda m: m.metrics.meter.prefix_hits),
        vllm="vllm:prefix_cache_hits_total",
    ),
    Family(
        "ovserve_kv_cache_usage_ratio",
        "gauge",
        "Part of the KV cache in use, 0 to 1. Without `cache_size` the whole is what free memory allows.",
        value(lambda m: m.cache_usage),
        vllm="vllm:kv_cache_usage_perc",
    ),
    Family("ovserve_kv_cache_bytes", "gauge", "Size of the KV cache.", value(lambda m: m.cache_bytes)),
    Family(
        "ovserve_kv_cache_config_info",
        "gauge",
        "Tokens per block of the KV cache, and its blocks; 0 blocks for a cache that grows as needed.",
        _config,
        ("block_size", "num_gpu_blocks"),
        vllm="vllm:cache_config_info",
    ),
)


STATES = ("loaded", "loading", "unloaded")


def _states(model: Model) -> Iterator[Sample]:
    state = _state(model)
    for name in STATES:
        yield (name,), int(name == state)


def _state(model: Model) -> str:
    """Return the state of the newest version; a graph without engines that is served is loaded."""
    if model.servable is None:
        return ""
    return model.servable.residence or "loaded"


IDLE_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovms_graph_loaded",
        "gauge",
        "1 while the graph is loaded, 0 while it is unloaded until the next request.",
        value(lambda m: int(_state(m) == "loaded")),
    ),
    Family(
        "ovserve_graph_state",
        "gauge",
        "1 for the state of a served graph's engines.",
        _states,
        ("state",),
        plain=True,
    ),
    Family(
        "ovserve_wake_seconds",
        "histogram",
        "Seconds that loads on demand took; their number is `_count`.",
        value(lambda m: m.metrics.wakes),
        plain=True,
    ),
    Family(
        "ovserve_unloads_total",
        "counter",
        "Times that the graph was unloaded until the next request: idle, or to make room for another one.",
        by_label(lambda m: m.metrics.unloads),
        ("cause",),
        plain=True,
    ),
)


ENCODER_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_embedding_inputs_total",
        "counter",
        "Texts, or lists of token ids, that were embedded.",
        value(lambda m: m.metrics.encoder.inputs),
    ),
    Family(
        "ovserve_embedding_tokens_total",
        "counter",
        "Tokens of inputs and of pairs, without padding.",
        value(lambda m: m.metrics.encoder.tokens),
    ),
    Family(
        "ovserve_embedding_truncated_total",
        "counter",
        "Inputs that were cut to the model's limit, or to the one of the request.",
        value(lambda m: m.metrics.encoder.truncated),
    ),
    Family(
        "ovserve_rerank_documents_total",
        "counter",
        "Documents that were ranked.",
        value(lambda m: m.metrics.encoder.documents),
    ),
    Family(
        "ovserve_rerank_chunks_total",
        "counter",
        "Pairs of a query and a document, or a piece of a long one.",
        value(lambda m: m.metrics.encoder.chunks),
    ),
    Family(
        "ovserve_embedding_batch_tokens",
        "histogram",
        "Tokens per inference, padding included.",
        value(lambda m: m.metrics.encoder.batch_tokens),
    ),
    Family(
        "ovserve_embedding_batch_true_tokens_total",
        "counter",
        "Tokens of all inferences, without padding.",
        value(lambda m: m.metrics.encoder.run_tokens),
    ),
    Family(
        "ovserve_embedding_queue_seconds",
        "histogram",
        "Seconds from a call's arrival in the engine to its first inference.",
        value(lambda m: m.metrics.encoder.queue_seconds),
    ),
)


IMAGE_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_images_total",
        "counter",
        "Images that were finished.",
        value(lambda m: m.metrics.images.images),
    ),
    Family(
        "ovserve_images_edited_total",
        "counter",
        "Finished images that were made of an image of the request.",
        value(lambda m: m.metrics.images.edited),
    ),
    Family(
        "ovserve_partial_images_total",
        "counter",
        "Unfinished images that were sent in streams.",
        value(lambda m: m.metrics.images.partial),
    ),
    Family(
        "ovserve_image_steps_total",
        "counter",
        "Inference steps of finished images.",
        value(lambda m: m.metrics.images.steps),
    ),
    Family(
        "ovserve_image_step_seconds",
        "histogram",
        "Seconds per step of an image, its text and its decoding included.",
        value(lambda m: m.metrics.images.step_seconds),
    ),
)


PYTHON_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_python_call_seconds",
        "histogram",
        "Seconds until a handler answered, or its generator yielded the next item.",
        lambda model: [((node,), times) for node, times in model.metrics.python.seconds.items()],
        ("node",),
    ),
    Family(
        "ovserve_python_calls_running",
        "gauge",
        "Calls, and items of generators, that a handler computes or that wait for one.",
        lambda model: [((node,), count) for node, count in model.metrics.python.running.items()],
        ("node",),
    ),
    Family(
        "ovserve_python_errors_total",
        "counter",
        "Calls that failed, by type: exception, timeout, process_ended, or another kind of error.",
        lambda model: [(key, count) for key, count in model.metrics.python.errors.items()],
        ("node", "type"),
    ),
)


SPEECH_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_speech_audio_seconds_total",
        "counter",
        "Seconds of audio that were read, pauses included.",
        value(lambda m: m.metrics.speech.audio_seconds),
    ),
    Family(
        "ovserve_speech_voice_seconds_total",
        "counter",
        "Seconds of speech in it, which is what the model gets.",
        value(lambda m: m.metrics.speech.speech_seconds),
    ),
    Family(
        "ovserve_speech_pieces_total",
        "counter",
        "Pieces of up to 28 s that the model has read.",
        value(lambda m: m.metrics.speech.pieces),
    ),
    Family(
        "ovserve_speech_open_requests",
        "gauge",
        "Recordings that are held for requests in progress.",
        value(lambda m: m.metrics.speech.open),
    ),
    Family(
        "ovserve_speech_real_time_factor",
        "histogram",
        "Seconds to an answer, waiting included, per second of audio.",
        value(lambda m: m.metrics.speech.real_time),
    ),
)


TEXT_TO_SPEECH_FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_text_to_speech_characters_total",
        "counter",
        "Characters of sentences that were spoken.",
        value(lambda m: m.metrics.text_to_speech.characters),
    ),
    Family(
        "ovserve_text_to_speech_sentences_total",
        "counter",
        "Sentences that were spoken.",
        value(lambda m: m.metrics.text_to_speech.sentences),
    ),
    Family(
        "ovserve_text_to_speech_audio_seconds_total",
        "counter",
        "Seconds of audio that were made of text.",
        value(lambda m: m.metrics.text_to_speech.audio_seconds),
    ),
    Family(
        "ovserve_text_to_speech_busy_seconds_total",
        "counter",
        "Seconds in which the engine made audio of text.",
        value(lambda m: m.metrics.text_to_speech.busy_seconds),
    ),
    Family(
        "ovserve_text_to_speech_first_audio_seconds",
        "histogram",
        "Seconds from a request for speech to its first sentence.",
        value(lambda m: m.metrics.text_to_speech.first_audio),
    ),
    Family(
        "ovserve_text_to_speech_turn_seconds",
        "histogram",
        "Seconds that a sentence waited while others were spoken.",
        value(lambda m: m.metrics.text_to_speech.turn_seconds),
    ),
)

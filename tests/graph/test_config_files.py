"""Whole graphs, written in the manners found in the wild."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.graph.config import GraphConfig, load_graph, parse_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.protos.options_pb2 import (
    EmbeddingsCalculatorOVOptions,
    S2tCalculatorOptions,
    T2sCalculatorOptions,
)

DATA = Path(__file__).parent / "data"


def graph(name: str) -> GraphConfig:
    return load_graph(DATA / f"{name}.pbtxt")


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pbtxt")), ids=lambda path: path.stem)
def test_every_line_is_found(path: Path) -> None:
    config = load_graph(path)
    lines = path.read_text("utf-8").split("\n")
    assert config.warnings == ()
    for i, node in enumerate(config.message.node):
        assert lines[config.line_of_node(i) - 1].startswith("node")
        for field in ("input_stream", "output_stream", "input_side_packet"):
            for text in getattr(node, field):
                assert text in lines[config.place_of(i, field, text)[0] - 1]


@pytest.mark.parametrize(
    "name",
    [path.stem for path in sorted(DATA.glob("*.pbtxt")) if path.stem.startswith(("llm", "vlm", "stt"))],
)
def test_loop_graphs(name: str) -> None:
    node = graph(name).message.node[0]
    assert [(each.tag_index, each.back_edge) for each in node.input_stream_info] == [("LOOPBACK:0", True)]
    assert node.input_stream_handler.input_stream_handler == "SyncSetInputStreamHandler"
    ((extension, options),) = node.input_stream_handler.options.ListFields()
    assert extension.full_name == "mediapipe.SyncSetInputStreamHandlerOptions.ext"
    assert [list(each.tag_index) for each in options.sync_set] == [["LOOPBACK:0"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llm_spaced", {"models_path": "/models/chat", "cache_size": 10, "max_num_seqs": 128}),
        ("llm_spaced", {"plugin_config": '{"PERFORMANCE_HINT": "LATENCY"}', "enable_prefix_caching": False}),
        ("llm_gpu", {"max_num_seqs": 64, "device": "GPU", "cache_size": 4}),
        ("llm_regular", {"models_path": "./", "plugin_config": '{"INFERENCE_PRECISION_HINT": "f32"}'}),
        ("llm_queue", {"models_path": "./", "best_of_limit": 20, "max_num_batched_tokens": 256}),
        ("llm_prompt_lookup", {"plugin_config": '{"prompt_lookup": true}'}),
        ("llm_speculative", {"draft_models_path": "small", "draft_cache_size": 2, "draft_max_num_seqs": 8}),
        ("llm_tools", {"tool_parser": "hermes3", "reasoning_parser": "qwen3"}),
        ("llm_legacy", {"pipeline_type": LLMCalculatorOptions.LM}),
        ("vlm_cb", {"pipeline_type": LLMCalculatorOptions.VLM_CB}),
        ("vlm_legacy", {"pipeline_type": LLMCalculatorOptions.VLM}),
    ],
)
def test_llm_options(name: str, expected: dict[str, object]) -> None:
    options = graph(name).options(0, LLMCalculatorOptions)
    assert {key: getattr(options, key) for key in expected} == expected


def test_unset_is_told_from_default() -> None:
    options = graph("llm_regular").options(0, LLMCalculatorOptions)
    assert options is not None
    assert not options.HasField("max_tokens_limit")
    assert not options.HasField("device")
    assert options.pipeline_type == LLMCalculatorOptions.AUTO


def test_speech() -> None:
    plain = graph("stt").options(0, S2tCalculatorOptions)
    words = graph("stt_words").options(0, S2tCalculatorOptions)
    assert plain is not None
    assert words is not None
    assert (plain.models_path, plain.target_device, plain.enable_word_timestamps) == ("ear", "CPU", False)
    assert words.enable_word_timestamps
    mouth = graph("tts").options(0, T2sCalculatorOptions)
    speed = graph("tts_speed").options(0, T2sCalculatorOptions)
    assert mouth is not None
    assert speed is not None
    assert [(voice.name, voice.path) for voice in mouth.voices] == [
        ("ann", "voices/ann.bin"),
        ("bob", "voices/bob.bin"),
    ]
    assert (mouth.speed_min, mouth.speed_max) == (0.25, 4.0)
    assert (speed.speed_min, speed.speed_max) == (0.5, 2.5)


def test_embeddings() -> None:
    plain = graph("embeddings").options(0, EmbeddingsCalculatorOVOptions)
    assert plain is not None
    assert not plain.normalize_embeddings
    assert not plain.HasField("pooling")
    for name, pooling in (("last", "LAST"), ("mean", "MEAN")):
        options = graph(f"embeddings_{name}").options(0, EmbeddingsCalculatorOVOptions)
        assert options is not None
        assert EmbeddingsCalculatorOVOptions.Pooling.Name(options.pooling) == pooling


def test_subgraph_file_and_defaults() -> None:
    """The manners of MediaPipe's own modules: `type`, `option_value`, indexes in streams, semicolons."""
    config = parse_graph(
        'type: "FaceFront"; num_threads: 4;\n'
        'node { calculator: "A"; input_stream: "IN:0:x"; option_value: "a:options/b"; executor: "" }\n'
    )
    message = config.message
    assert (message.type, message.num_threads, message.max_queue_size) == ("FaceFront", 4, 100)
    assert not message.HasField("max_queue_size")
    assert message.node[0].max_in_flight == 1
    assert list(message.node[0].option_value) == ["a:options/b"]

"""LLMCalculatorOptions: each field reaches the engine's specification or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.model.files import VISION_FILES
from ovserve.engine.protocol.specs import (
    CacheEviction,
    DraftSpec,
    GenerationSpec,
    PagedTextSpec,
    ScriptSpec,
    SparseAttention,
    StatefulTextSpec,
    TextSpec,
)
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.kinds.text.engine_choice import TALKER_FILE
from ovserve.kinds.text.options import LlmOptions, parse_llm_options
from ovserve.kinds.text.resource import choose_parsers
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.serving.loader import check_graph
from tests.conftest import script_graph
from tests.rendering import probed

REGISTRY = Registry(MODULES)


def options_of(tmp_path: Path, options: str = "", models_path: str = "model.script.json") -> LlmOptions:
    directory = script_graph(tmp_path / "g", "{}")
    path = directory / "graph.pbtxt"
    path.write_text(
        path.read_text().replace(
            'models_path: "model.script.json"', f'models_path: "{models_path}" {options}'
        )
    )
    _, nodes = check_graph(directory, REGISTRY)
    return parse_llm_options(nodes["llm"])


def load(tmp_path: Path, options: str = "", models_path: str = "model.script.json") -> GenerationSpec:
    return options_of(tmp_path, options, models_path).spec


def test_defaults_are_ovms_s(tmp_path: Path) -> None:
    spec = load(tmp_path)
    assert spec == ScriptSpec(model_path=str(tmp_path / "g" / "model.script.json"), paged=True)
    assert (spec.max_num_batched_tokens, spec.max_num_seqs, spec.cache_size) == (256, 256, 0)
    assert (spec.dynamic_split_fuse, spec.enable_prefix_caching) == (True, False)


OPTIONS = [
    ('device: "GPU.1"', "device", "GPU.1"),
    ("cache_size: 3", "cache_size", 3),
    ("max_num_seqs:16", "max_num_seqs", 16),
    ("max_num_batched_tokens: 1024", "max_num_batched_tokens", 1024),
    ("dynamic_split_fuse: false max_num_batched_tokens: 256", "dynamic_split_fuse", False),
    ("enable_prefix_caching: true", "enable_prefix_caching", True),
    ('plugin_config: \'{"NUM_STREAMS": 1, "A": true}\'', "properties", '{"A": true, "NUM_STREAMS": "1"}'),
    ("plugin_config: ' '", "properties", "{}"),
    ("plugin_config: '{\"prompt_lookup\": false}'", "properties", "{}"),
    ("engine: 'genai' plugin_config: '{\"prompt_lookup\": true}'", "prompt_lookup", True),
    (
        "engine: 'genai' plugin_config: '{\"prompt_lookup\": true}' enable_tool_guided_generation: true",
        "prompt_lookup",
        True,
    ),
    ("engine: 'genai' plugin_config: '{\"prompt_lookup\": true}'", "decoding", "prompt_lookup"),
    ("plugin_config: '{\"prompt_lookup\": true}'", "decoding", "paged"),
    ("pipeline_type: LM_CB", "device", "CPU"),
    ("cache_interval_multiplier: 16", "cache_interval_multiplier", 16),
    (
        "cache_eviction_config { start_size: 32 recent_size: 64 max_cache_size: 192 aggregation_mode: SUM"
        " snapkv_window_size: 4 kv_crush_config { budget: 2 anchor_point_mode: MEAN rng_seed: 5 } }",
        "cache_eviction",
        CacheEviction(32, 64, 192, "SUM", False, 4, 2, "MEAN", 5),
    ),
    (
        "cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 }",
        "cache_eviction",
        CacheEviction(32, 32, 96),
    ),
    ("sparse_attention_config { }", "sparse_attention", SparseAttention()),
    (
        "sparse_attention_config { mode: XATTENTION num_last_dense_tokens_in_prefill: 9"
        " num_retained_start_tokens_in_cache: 0 xattention_threshold: 0.5 xattention_stride: 16 }",
        "sparse_attention",
        SparseAttention(
            "XATTENTION",
            {
                "num_last_dense_tokens_in_prefill": 9,
                "num_retained_start_tokens_in_cache": 0,
                "xattention_threshold": 0.5,
                "xattention_stride": 16,
            },
        ),
    ),
    ("plugin_config: '{\"CPU_THREADS_NUM\": 2}'", "properties", '{"INFERENCE_NUM_THREADS": 2}'),
    ("plugin_config: '{\"CPU_THROUGHPUT_STREAMS\": 2}'", "properties", '{"NUM_STREAMS": "2"}'),
    (
        'plugin_config: \'{"CPU_THROUGHPUT_STREAMS": "CPU_THROUGHPUT_AUTO"}\'',
        "properties",
        '{"PERFORMANCE_HINT": "THROUGHPUT"}',
    ),
    ('plugin_config: \'{"CACHE_DIR": "a\\\\\\\\b"}\'', "properties", '{"CACHE_DIR": "a/b"}'),
    ("pipeline_type: AUTO", "max_num_seqs", 256),
    ("pipeline_type: LM", "max_num_seqs", 1),
    ("device: 'NPU'", "max_num_seqs", 1),
    ("device: 'NPU' pipeline_type: LM", "device", "NPU"),
    ("device: 'NPU.1'", "max_num_seqs", 256),
    ("engine: 'genai'", "decoding", "plain"),
    ("engine: ''", "decoding", "paged"),
    ("engine: 'paged'", "decoding", "paged"),
    ("engine: 'paged' pipeline_type: LM_CB device: 'CPU'", "decoding", "paged"),
    ("engine: 'paged' enable_prefix_caching: true", "enable_prefix_caching", True),
    ("engine: 'paged' cache_size: 3", "cache_size", 3),
    ("engine: 'paged' plugin_config: '{\"prompt_lookup\": true}'", "decoding", "paged"),
    ("engine: 'paged' plugin_config: '{\"prompt_lookup\": true}'", "prompt_lookup", False),
    ("engine: 'paged' plugin_config: '{\"prompt_lookup\": true}'", "properties", "{}"),
    ("engine: 'paged' dynamic_split_fuse: false", "dynamic_split_fuse", False),
    (
        "engine: 'paged' dynamic_split_fuse: false enable_prefix_caching: true",
        "enable_prefix_caching",
        True,
    ),
    ("deterministic: true", "deterministic", True),
    ("engine: 'paged' deterministic: true enable_prefix_caching: true", "deterministic", True),
    ("deterministic: false draft_models_path: '.'", "deterministic", False),
    ("engine: 'paged' max_num_seqs: 16", "max_num_seqs", 16),
    ("engine: 'paged' max_num_batched_tokens: 64", "max_num_batched_tokens", 64),
    ("engine: 'paged' plugin_config: '{\"NUM_STREAMS\": 1}'", "properties", '{"NUM_STREAMS": "1"}'),
    ("tool_parser: 'none' reasoning_parser: ''", "device", "CPU"),
    ("tool_parser: 'hermes3' reasoning_parser: 'qwen3'", "device", "CPU"),
    ("enable_tool_guided_generation: false draft_eagle3_mode: false", "device", "CPU"),
    ("max_tokens_limit: 5 best_of_limit: 3", "device", "CPU"),
    ("chat_template_path: 'graph.pbtxt' generic_tool_prompt: true", "device", "CPU"),
    ("tool_parser: 'hermes3' generic_tool_prompt: true", "device", "CPU"),
]


def test_an_option_reaches_the_engine(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, field, value in OPTIONS:
        with subtests.test(text):
            assert getattr(load(tmp_path, text), field) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("draft_device: 'CPU'", {"device": "CPU"}),
        ("draft_cache_size: 2", {"cache_size": 2}),
        ("draft_max_num_seqs: 7", {"max_num_seqs": 7}),
        ("draft_max_num_batched_tokens: 256 draft_dynamic_split_fuse: true", {}),
        ("draft_eagle3_mode: true", {"eagle3": True}),
    ],
)
def test_a_draft_option_reaches_the_engine(tmp_path: Path, text: str, expected: dict[str, object]) -> None:
    spec = load(tmp_path, "draft_models_path: '.' " + text)
    assert spec.draft == DraftSpec(str(tmp_path / "g"), **expected)  # type: ignore[arg-type]
    assert spec.decoding == ("eagle3" if spec.draft.eagle3 else "paged")
    by_genai = load(tmp_path, "engine: 'genai' draft_models_path: '.' " + text)
    assert (by_genai.draft, by_genai.decoding) == (spec.draft, "eagle3" if spec.draft.eagle3 else "draft")


def test_prompt_lookup_wins_over_a_draft_model_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "draft_models_path: '.' plugin_config: '{\"prompt_lookup\": true}'"
    for engine, decoding in (("", "paged"), ("genai", "prompt_lookup")):
        spec = load(tmp_path, f"engine: '{engine}' {text}")
        assert (spec.decoding, spec.draft) == (decoding, None)
    assert "the draft model is not loaded" in caplog.text


REFUSALS = [
    ("draft_models_path: 'x'", "draft_models_path", "does not exist"),
    ("draft_models_path: 'graph.pbtxt'", "draft_models_path", "directory in OpenVINO IR form"),
    ("draft_device: 'CPU'", "draft_device", "without draft_models_path"),
    ("draft_max_num_batched_tokens: 1", "draft_max_num_batched_tokens", "without draft_models_path"),
    ("draft_cache_size: 1", "draft_cache_size", "without draft_models_path"),
    ("draft_block_size: 1", "draft_block_size", "without draft_models_path"),
    ("draft_max_num_seqs: 1", "draft_max_num_seqs", "without draft_models_path"),
    ("draft_dynamic_split_fuse: true", "draft_dynamic_split_fuse", "without draft_models_path"),
    ("draft_eagle3_mode: true", "draft_eagle3_mode", "without draft_models_path"),
    ("draft_models_path: '.' draft_max_num_batched_tokens: 1", "draft_max_num_batched_tokens", "256, for the draft too"),
    ("draft_models_path: '.' draft_dynamic_split_fuse: false", "draft_dynamic_split_fuse", "True, for the draft too"),
    ("draft_models_path: '.' draft_block_size: 32", "draft_block_size", "the engine chooses"),
    ("draft_models_path: '.' draft_max_num_seqs: 0", "draft_max_num_seqs", "at least 1"),
    ("cache_eviction_config { start_size: 31 recent_size: 32 max_cache_size: 96  }", "cache_eviction_config", "start_size: expected a multiple of 32"),
    ("cache_eviction_config { start_size: 32 recent_size: 0 max_cache_size: 96  }", "cache_eviction_config", "recent_size: expected a multiple of 32"),
    ("cache_eviction_config { start_size: 32 recent_size: 64 max_cache_size: 96  }", "cache_eviction_config", "max_cache_size: 96 must be more than"),
    ("cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 snapkv_window_size: 33 }", "cache_eviction_config", "snapkv_window_size: expected at most 32"),
    ("cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 apply_rotation: true }", "cache_eviction_config", "not possible on CPU"),
    ("cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 kv_crush_config { budget: 2 } }", "cache_eviction_config", "budget: expected at most 1"),
    ("cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 aggregation_mode: ADAPTIVE_RKV }", "aggregation_mode", ""),
    ("sparse_attention_config { num_retained_start_tokens_in_cache: 33 }", "sparse_attention_config", "multiple of 32"),
    ("sparse_attention_config { num_retained_recent_tokens_in_cache: 1 }", "sparse_attention_config", "multiple of 32"),
    ("sparse_attention_config { xattention_block_size: 16 }", "sparse_attention_config", "multiple of 32"),
    ("sparse_attention_config { xattention_stride: 7 }", "sparse_attention_config", "divisor of xattention_block_size 64"),
    ("sparse_attention_config { xattention_threshold: 1.5 }", "sparse_attention_config", "expected 0 to 1"),
    ("cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 } draft_models_path: '.'", "cache_eviction_config", "not with a draft model"),
    ("cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 } plugin_config: '{\"prompt_lookup\": true}'", "cache_eviction_config", "not with a draft model"),
    ("cache_interval_multiplier: 7", "cache_interval_multiplier", "8 to 256"),
    ("cache_interval_multiplier: 257", "cache_interval_multiplier", "8 to 256"),
    ("plugin_config: '{\"DEVICE_PROPERTIES\": {\"CPU\": 1}}'", "plugin_config", "devices with properties"),
    ("plugin_config: '{\"NUM_STREAMS\": 1, \"CPU_THROUGHPUT_STREAMS\": 2}'", "plugin_config", "given already"),
    ("tool_parser: 'hermes'", "tool_parser", "did you mean hermes3?); known: none, apertus"),
    ("reasoning_parser: 'qwen'", "reasoning_parser", "known: none, apertus"),
    ("tool_parser: 'hermes3' reasoning_parser: 'onyx'", "reasoning_parser", "reads the whole answer"),
    ("tool_parser: 'llama3' generic_tool_prompt: true", "generic_tool_prompt", "hermes3, and tool_parser is 'llama3'"),
    ("chat_template_path: 'no.jinja'", "chat_template_path", "no.jinja: No such file"),
    ("chat_template_path: '.'", "chat_template_path", "Is a directory"),
    ("pipeline_type: VLM", "pipeline_type", "VLM: model.script.json is not a vision model"),
    ("pipeline_type: VLM_CB", "pipeline_type", "VLM_CB: model.script.json is not a vision model"),
    ("pipeline_type: OMNI", "pipeline_type", "OMNI: model.script.json is not an Omni model, which has openvino_text"),
    ("pipeline_type: LM_CB device: 'NPU'", "pipeline_type", "an NPU has only LM, or AUTO"),
    ("pipeline_type: LM draft_models_path: '.'", "draft_models_path", "not possible with the stateful pipeline"),
    ("device: 'NPU' plugin_config: '{\"prompt_lookup\": true}'", "plugin_config", "prompt_lookup: not possible"),
    ("engine: 'page'", "engine", "expected genai or paged, got 'page'; did you mean paged?"),
    ("engine: 'PAGED'", "engine", "got 'PAGED'; did you mean paged?"),
    ("engine: 'GenAI '", "engine", "did you mean genai?"),
    ("engine: 'vllm'", "engine", "expected genai or paged, got 'vllm'"),
    ("engine: PAGED", "engine", "Expected string but found: 'PAGED'"),
    ("engine: 'paged' device: 'GPU.1'", "device", "GPU.1: not possible with engine: \"paged\", which runs on CPU only"),
    ("engine: 'paged' device: 'NPU'", "device", "NPU: not possible"),
    ("engine: 'paged' pipeline_type: LM", "pipeline_type", "LM: not possible with engine: \"paged\", which has AUTO and LM_CB"),
    ("engine: 'paged' draft_models_path: '.' draft_eagle3_mode: true", "draft_eagle3_mode", "which drafts with whole models"),
    ("engine: 'paged' draft_models_path: '.' draft_device: 'GPU'", "draft_device", "GPU: not possible with engine: \"paged\""),
    ("engine: 'paged' cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 }", "cache_eviction_config", "which evicts no tokens"),
    ("engine: 'paged' sparse_attention_config { }", "sparse_attention_config", "which attends to all tokens"),
    ("engine: 'paged' cache_interval_multiplier: 16", "cache_interval_multiplier", "no models with linear attention"),
    ("engine: 'paged' lora_adapters { alias: 'a' path: 'b' }", "lora_adapters", "not possible with engine"),
    ("deterministic: true engine: 'genai'", "deterministic", "OpenVINO GenAI's engine, which the node gets as the graph says"),
    ("deterministic: true device: 'GPU'", "deterministic", "because the paged engine runs on CPU only (device)"),
    ("deterministic: true pipeline_type: LM", "deterministic", "gets because of pipeline_type LM"),
    ("deterministic: true draft_models_path: '.'", "deterministic", "not possible with draft_models_path"),
    ("deterministic: true plugin_config: '{\"prompt_lookup\": true}'", "deterministic", "not possible with prompt_lookup"),
    ("deterministic: true dynamic_split_fuse: false", "deterministic", "not possible with dynamic_split_fuse: false"),
    ("max_num_seqs: 0", "max_num_seqs", "at least 1"),
    ("max_num_batched_tokens: 0", "max_num_batched_tokens", "at least 1"),
    ("dynamic_split_fuse: false max_num_batched_tokens: 64", "max_num_batched_tokens", "less than max_num_seqs 256"),
    ("best_of_limit: 0", "best_of_limit", "at least 1"),
    ("max_tokens_limit: 0", "max_tokens_limit", "at least 1"),
    ("max_model_len: 1", "max_model_len", "at least 2"),
    ("prefix_cache_size: 2", "prefix_cache_size", "prefix_cache_path"),
    ("enable_prefix_caching: true prefix_cache_path: 'kept' prefix_cache_size: 0", "prefix_cache_size", "at least 1"),
    ("prefix_cache_path: 'kept'", "prefix_cache_path", "enable_prefix_caching"),
    ("engine: 'genai' enable_prefix_caching: true prefix_cache_path: 'kept'", "prefix_cache_path", "as the graph says"),
    ("plugin_config: '[1]'", "plugin_config", "expected a JSON object"),
    ("plugin_config: 'x'", "plugin_config", "not JSON"),
    ("plugin_config: '{\"A\": [1]}'", "plugin_config", "A: expected"),
    ("plugin_config: '{\"prompt_lookup\": 1}'", "plugin_config", "true or false"),
    ("max_num_seqs: -1", "max_num_seqs", ""),
    ("max_num_seqs: 'many'", "max_num_seqs", ""),
    ("max_num_seq: 5", "max_num_seq", "max_num_seqs"),
]  # fmt: skip


def test_a_refusal_names_file_line_node_and_field(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, field, says in REFUSALS:
        with subtests.test(text):
            with pytest.raises(LoadError) as caught:
                load(tmp_path, text)
            for part in (f"{tmp_path / 'g' / 'graph.pbtxt'}:", "LLMExecutor", field, says):
                assert part in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "more", "says"),
    [
        ("LM", (), "LM: m is a vision model"),
        ("LM_CB", (), "LM_CB: m is a vision model"),
        ("LM", (TALKER_FILE,), "LM: m is a vision model"),
        ("VLM", (TALKER_FILE,), "VLM: not possible with an Omni model; .* loses its place in time"),
        ("AUTO device: 'NPU'", (TALKER_FILE,), "NPU: not possible with an Omni model"),
        ("OMNI device: 'NPU'", (TALKER_FILE,), "NPU: not possible with an Omni model"),
        ("OMNI", (), "OMNI: m is not an Omni model, which has .*openvino_talker_model.xml"),
    ],
)
def test_what_the_files_of_a_model_say_is_not_contradicted(
    tmp_path: Path, type_: str, more: tuple[str, ...], says: str
) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    for name in (*VISION_FILES, *more):
        (tmp_path / "g/m" / name).touch()
    with pytest.raises(LoadError, match=says) as caught:
        load(tmp_path, f"pipeline_type: {type_}", models_path="m")
    assert "node 'LLMExecutor': pipeline_type" in str(caught.value)


def test_the_parser_is_chosen_by_the_directory_s_name_where_the_graph_is_in_it(tmp_path: Path) -> None:
    template = probed('<tool_call>\n{"name": <function-name>}\n</tool_call>')
    for name, expected in (("Qwen2.5-Coder-7B", "qwen25coder"), ("Qwen2.5-7B", "hermes3")):
        (tmp_path / name / "g").mkdir(parents=True)
        (tmp_path / name / "g/openvino_model.xml").touch()
        for path in ("./", f"../../{name}/g"):
            options = options_of(tmp_path / name, models_path=path)
            assert choose_parsers(options, template).tool == expected, (name, path)


def test_a_vision_model_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    for name in VISION_FILES:
        (tmp_path / "g/m" / name).touch()
    given = load(tmp_path, models_path="m")
    assert type(given) is TextSpec
    assert load(tmp_path, "pipeline_type: VLM_CB", models_path="m") == given
    assert type(load(tmp_path, "pipeline_type: VLM", models_path="m")) is StatefulTextSpec
    assert type(load(tmp_path, 'device: "NPU"', models_path="m")) is StatefulTextSpec
    for text, field in (('draft_models_path: "./"', "draft_models_path: not possible with a vision model"),):
        with pytest.raises(LoadError, match=field):
            load(tmp_path, text, models_path="m")
    (tmp_path / "g/m" / VISION_FILES[1]).unlink()
    with pytest.raises(LoadError, match="VLM_CB: m is not a vision model"):
        load(tmp_path, "pipeline_type: VLM_CB", models_path="m")


def test_the_part_of_an_omni_model_that_writes_text_is_a_vision_model(tmp_path: Path) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    for name in (*VISION_FILES, TALKER_FILE):
        (tmp_path / "g/m" / name).touch()
    given = load(tmp_path, models_path="m")
    assert type(given) is TextSpec
    for type_ in ("OMNI", "VLM_CB", "AUTO"):
        assert load(tmp_path, f"pipeline_type: {type_}", models_path="m") == given


def test_no_prefix_is_cached_where_the_library_would_answer_wrongly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = (
        "engine: 'genai' enable_prefix_caching: true dynamic_split_fuse: false max_num_seqs: 16 "
        "max_num_batched_tokens: 256"
    )
    given = load(tmp_path, both)
    assert (given.enable_prefix_caching, given.dynamic_split_fuse) == (False, False)
    assert "prefixes are not cached" in caplog.text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", PagedTextSpec),
        ("pipeline_type: AUTO", PagedTextSpec),
        ("pipeline_type: LM_CB", PagedTextSpec),
        ("pipeline_type: LM", StatefulTextSpec),
        ("device: 'NPU'", StatefulTextSpec),
        ("device: 'NPU' pipeline_type: LM", StatefulTextSpec),
        ("device: 'NPU.1'", TextSpec),
        ("engine: 'genai'", TextSpec),
        ("engine: 'paged'", PagedTextSpec),
    ],
)
def test_pipeline_and_device_decide_on_the_kind_of_engine(
    tmp_path: Path, text: str, kind: type[GenerationSpec]
) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    assert type(load(tmp_path, text, models_path="m")) is kind


EVICTION = "cache_eviction_config { start_size: 32 recent_size: 32 max_cache_size: 96 }"


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("", "paged", "which has all that the graph asks for"),
        ("engine: 'paged'", "paged", "as the graph says"),
        ("engine: 'genai'", "genai", "as the graph says"),
        ("device: 'GPU'", "genai", "because the paged engine runs on CPU only (device)"),
        (EVICTION, "genai", "because the paged engine evicts no tokens (cache_eviction_config)"),
        ("sparse_attention_config { }", "genai", "because the paged engine attends to all tokens"),
        ("cache_interval_multiplier: 16", "genai", "runs no models with linear attention"),
        ("lora_adapters { alias: 'a' path: 'b' }", "genai", "has no adapters (lora_adapters)"),
        ("draft_models_path: '.'", "paged", "which has all that the graph asks for"),
        ("draft_models_path: '.' draft_eagle3_mode: true", "genai", "(draft_eagle3_mode)"),
        ("draft_models_path: '.' draft_device: 'GPU'", "genai", "(draft_device)"),
        ("pipeline_type: LM", "stateful", "because of pipeline_type LM"),
        ("device: 'NPU'", "stateful", "because of device NPU"),
    ],
)
def test_the_engine_of_a_graph_and_why(tmp_path: Path, text: str, name: str, reason: str) -> None:
    engine = options_of(tmp_path, text).engine.engine
    assert engine.name == name
    assert reason in str(engine)


def test_a_model_that_paged_attention_computes_wrongly_is_stateful(tmp_path: Path) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    (tmp_path / "g/m/config.json").write_text('{"model_type": "llama4_text"}')
    engine = options_of(tmp_path, models_path="m").engine.engine
    assert str(engine) == "stateful, because paged attention would compute llama4_text wrongly"
    for text, field in (("engine: 'paged'", "models_path"), ("pipeline_type: LM_CB", "pipeline_type")):
        with pytest.raises(LoadError, match="computes llama4_text wrongly") as raised:
            options_of(tmp_path, text, models_path="m")
        assert raised.value.field == field
    (tmp_path / "g/m/config.json").write_text('{"model_type": ["mpt"]}')
    assert options_of(tmp_path, models_path="m").engine.engine.name == "paged"


def test_a_model_that_the_library_computes_wrongly_is_paged_or_stateful(tmp_path: Path) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    (tmp_path / "g/m/config.json").write_text('{"model_type": "qwen3_5_text"}')
    chosen = options_of(tmp_path, models_path="m").engine
    assert (chosen.engine.name, type(chosen.fallback).__name__) == ("paged", "StatefulTextSpec")
    for text in ("engine: 'genai'", "device: 'GPU'", "sparse_attention_config {}"):
        options = options_of(tmp_path, text, models_path="m")
        assert options.engine.engine.name == "stateful", text
        assert type(options.spec).__name__ == "StatefulTextSpec"
    assert options_of(tmp_path, "pipeline_type: LM_CB", models_path="m").engine.engine.name == "paged"
    with pytest.raises(LoadError, match="LM_CB: OpenVINO GenAI computes qwen3_5_text wrongly"):
        options_of(tmp_path, "pipeline_type: LM_CB engine: 'genai'", models_path="m")


def test_without_the_packages_of_the_paged_engine_the_other_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ovserve.kinds.text.engine_choice.masks_grammars", lambda: False)
    options = options_of(tmp_path)
    assert (options.spec.decoding, options.engine.fallback) == ("plain", None)
    assert "packages of the paged engine are missing" in caplog.text
    assert options_of(tmp_path, "engine: 'paged'").spec.decoding == "paged"  # it fails at a grammar only


def test_a_graph_that_names_no_engine_has_a_fallback(tmp_path: Path) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    text = 'plugin_config: \'{"prompt_lookup": true, "A": 1}\' max_num_seqs: 7'
    fallback = options_of(tmp_path, text, "m").engine.fallback
    assert fallback == load(tmp_path, f"engine: 'genai' {text}", "m")
    assert options_of(tmp_path, "engine: 'paged'", "m").engine.fallback is None
    assert options_of(tmp_path, "deterministic: true", "m").engine.fallback is None


@pytest.mark.parametrize("inside", [True, False])
def test_a_gguf_file_is_converted_for_the_paged_engine(tmp_path: Path, inside: bool) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    (tmp_path / "g/m/a.gguf").touch()
    place = "m" if inside else "m/a.gguf"
    for engine, converts in ("", True), ("engine: 'paged'", True), ("engine: 'genai'", False):
        spec = load(tmp_path, engine, models_path=place)
        assert (spec.converts, spec.model_path) == (converts, str(tmp_path / "g/m/a.gguf"))
    (tmp_path / "g/m/openvino_model.xml").touch()
    assert not load(tmp_path, "engine: 'paged'", models_path="m").converts


@pytest.mark.parametrize("type_", ["", "pipeline_type: VLM_CB"])
def test_the_paged_engine_takes_no_images(tmp_path: Path, type_: str) -> None:
    (tmp_path / "g/m").mkdir(parents=True)
    for name in VISION_FILES:
        (tmp_path / "g/m" / name).touch()
    with pytest.raises(
        LoadError, match='m: not possible with engine: "paged", which takes no images'
    ) as caught:
        load(tmp_path, f"engine: 'paged' {type_}", models_path="m")
    assert caught.value.field == "models_path"


def test_what_the_stateful_pipeline_has_no_use_for_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """OVMS's own graphs for an NPU have these."""
    given = load(tmp_path, "pipeline_type: LM cache_size: 3 max_num_seqs: 16 enable_prefix_caching: true")
    assert given == load(tmp_path, "pipeline_type: LM")
    assert "one request at a time: cache_size, max_num_seqs, enable_prefix_caching" in caplog.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere", "nowhere does not exist$"),
        ("models/small", "does not exist; `make setup` makes the default model"),
        ("models/small/weights.gguf", "does not exist; `ovserve pull small` may fetch it"),
        ("graph.pbtxt", "neither a directory"),
    ],
)
def test_models_path_must_be_a_model(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        load(tmp_path, models_path=path)


def test_every_field_of_the_message_is_decided_on() -> None:
    """A field added to the message must be honoured or refused; this list is the decision."""
    here = Path(__file__).read_text()
    # max_queue, queue_timeout and the like; lora_adapters
    elsewhere = [Path(__file__).parents[1] / "http" / name for name in ("test_admission.py", "test_lora.py")]
    here += "".join(path.read_text() for path in elsewhere)
    for name in LLMCalculatorOptions.DESCRIPTOR.fields_by_name:
        assert name in here or name == "chat_template_mode", (
            f"{name} is neither tested as honoured nor as refused"
        )


def test_repetition_detection_is_on_unless_the_graph_turns_it_off(tmp_path: Path) -> None:
    for text, expected in (
        ("", True),
        ("repetition_detection: true", True),
        ("repetition_detection: false", False),
    ):
        _, nodes = check_graph(script_graph(tmp_path / "g", "{}", text), REGISTRY)
        assert parse_llm_options(nodes["llm"]).repetition_detection is expected


def test_a_stall_timeout_may_be_none_but_not_less(tmp_path: Path) -> None:
    assert load(tmp_path, "stall_timeout: 0")
    with pytest.raises(LoadError, match="expected 0 seconds or more, got -1"):
        load(tmp_path, "stall_timeout: -1")


def test_two_engine_nodes_need_two_side_packets(tmp_path: Path) -> None:
    directory = script_graph(tmp_path / "g", "{}")
    path = directory / "graph.pbtxt"
    text = path.read_text()
    node = text[text.index('node {\n  name: "LLMExecutor"') : text.index('node {\n  name: "OutputParser"')]
    twin = (
        node.replace('LLMExecutor"', 'Twin"')
        .replace("DELTA:delta", "DELTA:delta2")
        .replace(":loopback", ":loopback2")
    )
    twin = twin.replace("LLMExecutorCalculator", "LLMExecutorCalculator").replace(
        'calculator: "Twin"', 'calculator: "LLMExecutorCalculator"'
    )
    path.write_text(text + twin)
    with pytest.raises(LoadError, match="already fills side packet 'llm'"):
        check_graph(directory, REGISTRY)
    path.write_text(text + twin.replace("LLM_NODE_RESOURCES:llm", "LLM_NODE_RESOURCES:other"))
    _, nodes = check_graph(directory, REGISTRY)
    assert {k: n.name for k, n in nodes.items()} == {"llm": "LLMExecutor", "other": "Twin"}


def test_properties_are_canonical_so_that_equal_specs_compare_equal(tmp_path: Path) -> None:
    one = load(tmp_path, 'plugin_config: \'{"A": 1, "B": 2}\'')
    two = load(tmp_path, 'plugin_config: \'{"B": 2, "A": 1}\'')
    assert one == two
    assert json.loads(one.properties) == {"A": 1, "B": 2}


EVICTION = "cache_eviction_config {{ start_size: 32 recent_size: 32 max_cache_size: 96 {} }}"


@pytest.mark.parametrize(
    ("more", "window", "warned"),
    [
        ("", 0, False),
        ("snapkv_window_size: 0", 0, False),
        ("snapkv_window_size: 1", 1, False),
        ("snapkv_window_size: 8", 0, True),
        ("aggregation_mode: SUM", 8, False),
        ("aggregation_mode: SUM snapkv_window_size: 16", 16, False),
    ],
)
def test_a_window_only_where_the_engine_can_have_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: str, window: int, warned: bool
) -> None:
    eviction = load(tmp_path, EVICTION.format(more)).cache_eviction
    assert eviction is not None
    assert eviction.snapkv_window_size == window
    assert ("snapkv_window_size 8 is taken as 0" in caplog.text) == warned


def test_no_prefixes_where_tokens_are_evicted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not load(tmp_path, "enable_prefix_caching: true " + EVICTION.format("")).enable_prefix_caching
    assert "enable_prefix_caching and cache_eviction_config" in caplog.text

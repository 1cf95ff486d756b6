"""Every spelling of graph.pbtxt that OVMS accepts or refuses, one case each."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from ovserve.errors import LoadError
from ovserve.graph.config import GraphConfig, parse_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.protos.options_pb2 import OpenVINOInferenceCalculatorOptions

HEAD = 'node {\n  name: "n"\n  node_options {\n    [type.googleapis.com/mediapipe.LLMCalculatorOptions] {\n'
TAIL = "\n    }\n  }\n}\n"


def llm(text: str) -> LLMCalculatorOptions:
    options = parse_graph(text).options(0, LLMCalculatorOptions)
    assert options is not None
    return options


@pytest.mark.parametrize(
    "text",
    [
        'node { name: "a" } node { name: "b" }',
        'node: { name: "a" } node: { name: "b" }',
        'node\n{ name: "a" } node:\n{ name: "b" }',
        'node < name: "a" > node: < name: "b" >',
        'node: [ { name: "a" }, { name: "b" } ]',
        'node [ < name: "a" >, { name: "b" } ]',
        'node { name: "a", }, node { name: "b"; };',
        'node { name: "a" }; node { name: "b" },',
        'node{name:"a"}node{name:"b"}',
        '\tnode\t{\tname:\t"a"\t}\r\nnode {\r\n  name: "b" }\r\n',
        'node { name: "a" } # first\n# second\nnode { name: # third\n "b" # fourth\n} # end',
        "node { name: 'a' } node { name: 'b' }",
        "node { name: 'a' '' \"\" } node { name: \"\"\n  'b' }",
        'node { name: "\\x61" } node { name: "\\142" }',
        'node: [ { name: "a" } ] node: [] node { name: "b" }',
    ],
)
def test_nodes_in_every_spelling(text: str) -> None:
    config = parse_graph(text)
    assert [node.name for node in config.message.node] == ["a", "b"]
    assert [config.place_of(i, "name", name)[0] > 0 for i, name in enumerate("ab")] == [True, True]


@pytest.mark.parametrize(
    "spelling",
    [
        "[type.googleapis.com/mediapipe.LLMCalculatorOptions]: {@}",
        "[type.googleapis.com/mediapipe.LLMCalculatorOptions] {@}",
        "[type.googleapis.com/mediapipe.LLMCalculatorOptions]<@>",
        "[type.googleapis.com / mediapipe.LLMCalculatorOptions]: {@}",
        "[ type.googleapis.com/ mediapipe.LLMCalculatorOptions ] {@}",
        "[\n type.googleapis.com\n/\nmediapipe.LLMCalculatorOptions\n]\n{@}",
        "[type.googleprod.com/mediapipe.LLMCalculatorOptions] {@}",
        "[example.com/mediapipe.LLMCalculatorOptions] {@}",
        "[example.com/deep/mediapipe.LLMCalculatorOptions] {@}",
    ],
)
def test_any_in_every_spelling(spelling: str) -> None:
    text = spelling.replace("@", ' models_path: "m" ')
    assert llm(f"node {{ node_options {{ {text} }} }}").models_path == "m"


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ("max_num_seqs:16", "max_num_seqs", 16),
        ("max_num_seqs: 0x10", "max_num_seqs", 16),
        ("max_num_seqs: 020", "max_num_seqs", 16),
        ("max_num_seqs: 16, device: 'CPU'; cache_size: 1 best_of_limit: 2,", "best_of_limit", 2),
        *((f"dynamic_split_fuse: {word}", "dynamic_split_fuse", True) for word in ("true", "True", "t", "1")),
        *(
            (f"dynamic_split_fuse: {word}", "dynamic_split_fuse", False)
            for word in ("false", "False", "f", "0")
        ),
        ("pipeline_type: VLM_CB", "pipeline_type", LLMCalculatorOptions.VLM_CB),
        ("pipeline_type: 3", "pipeline_type", LLMCalculatorOptions.VLM_CB),
        ('device: "a\\nb"', "device", "a\nb"),
        ('device: "\\"a\\""', "device", '"a"'),
        ("device: 'say \"hi\"'", "device", 'say "hi"'),
        ('device: "\\x41\\102"', "device", "AB"),
        ('device: "\\q"', "device", "\\q"),
        ('device: "a#b" # c', "device", "a#b"),
        ('device: "a//b/*c*/"', "device", "a//b/*c*/"),
        ('device: "}]"', "device", "}]"),
        ('device: "a" \'b\'\n "c"', "device", "abc"),
    ],
)
def test_values_in_every_spelling(body: str, field: str, value: object) -> None:
    assert getattr(llm(HEAD + body + TAIL), field) == value


def test_closing_braces_and_no_final_newline() -> None:
    assert llm(HEAD + "cache_size: 1}}}").cache_size == 1


@pytest.mark.parametrize(
    "body",
    [
        'tag_to_input_tensor_names { key: "A" value: "x" } tag_to_input_tensor_names { key: "B" value: "y" }',
        'tag_to_input_tensor_names {key: "A" value:"x"} tag_to_input_tensor_names: {key: "B", value:"y"}',
        'tag_to_input_tensor_names: [{key: "A" value: "x"}, {key: "B" value: "y"}]',
    ],
)
def test_maps(body: str) -> None:
    text = f"node {{ node_options {{ [a/mediapipe.OpenVINOInferenceCalculatorOptions] {{ {body} }} }} }}"
    options = parse_graph(text).options(0, OpenVINOInferenceCalculatorOptions)
    assert options is not None
    assert dict(options.tag_to_input_tensor_names) == {"A": "x", "B": "y"}


def test_scalar_lists() -> None:
    config = parse_graph("input_stream: ['a', 'b'] profiler_config { trace_event_types_disabled: [1, 0x2] }")
    assert list(config.message.input_stream) == ["a", "b"]
    assert list(config.message.profiler_config.trace_event_types_disabled) == [1, 2]


@pytest.mark.parametrize("colon", ["", ":"])
def test_handler_extension(colon: str) -> None:
    config = parse_graph(
        f"input_stream_handler {{ options {{ [mediapipe.FixedSizeInputStreamHandlerOptions.ext]{colon} "
        "{ trigger_queue_size: 7 } } }"
    )
    ((field, value),) = config.message.input_stream_handler.options.ListFields()
    assert field.full_name == "mediapipe.FixedSizeInputStreamHandlerOptions.ext"
    assert value.trigger_queue_size == 7


@pytest.mark.parametrize("text", ["", "\n\n", "# only words", "\ufeff", b"", b"\xef\xbb\xbf"])
def test_empty_text_is_an_empty_graph(text: str | bytes) -> None:
    config: GraphConfig = parse_graph(text)
    assert not config.message.ListFields()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("max_num_seq: 1", "max_num_seq: .*no such field; did you mean max_num_seqs"),
        ("Cache_Size: 1", "Cache_Size: .*no such field; did you mean cache_size"),
        ("DEVICE: 'x'", "DEVICE: .*no such field; did you mean device"),
        ("cache_size: 1 cache_size: 2", "cache_size: .*multiple"),
        (
            "cache_eviction_config { start_size: 1 recent_size: 1 max_cache_size: 1 start_size: 2 }",
            "start_size: .*multiple",
        ),
        ("cache_size: 1,,", "got ,"),
        ("cache_size: 1;,", "got ,"),
        ('pipeline_type: "LM"', "pipeline_type: .*no quotes: LM"),
        ("pipeline_type: LMS", "pipeline_type: .*no value LMS; did you mean LM?.*known: AUTO, LM, LM_CB"),
        ("pipeline_type: lm", "pipeline_type: .*no value lm; did you mean LM?"),
        ("pipeline_type: 77", "pipeline_type: .*77"),
        ("dynamic_split_fuse: TRUE", 'dynamic_split_fuse: Expected "true" or "false"'),
        ('dynamic_split_fuse: "true"', 'dynamic_split_fuse: Expected "true" or "false"'),
        ("cache_size: -1", "cache_size: .*out of range: -1"),
        ("best_of_limit: 4294967296", "best_of_limit: .*out of range: 4294967296"),
        ("cache_size: 1.5", "cache_size: .*1.5"),
        ("cache_size: x", "cache_size: .*x"),
        ("device: 3", "device: .*'3'"),
        ("device: 'a\nb'", "device: .*ending quote"),
        ('device: "\\xzz"', "device: "),
        ('device: ["a",]', "device: "),
        ("device { }", 'device: Expected ":"'),
        ("cache_eviction_config: 3", 'cache_eviction_config: Expected "{"'),
        ("// no", "'//' does not start a comment.*use #"),
        ("cache_size: 1// no", "'//' does not start a comment.*use #"),
        ("/* no */", "'/\\*' does not start a comment.*use #"),
        ("[mediapipe.Nope.ext] {}", "does not have extensions"),
        (
            "cache_eviction_config { start_size: 1 max_cache_size: 1 }",
            "recent_size: required.*CacheEvictionConfig",
        ),
    ],
)
def test_refused_inside_options(body: str, says: str) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        parse_graph(HEAD + body + TAIL, "g.pbtxt")
    assert str(caught.value).startswith("g.pbtxt:5: node 'n': ")
    assert "(at 5:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("node {\n node_options {\n [mediapipe.LLMCalculatorOptions] {} } }", 3, "needs a domain"),
        ("node {\n node_options { [/mediapipe.LLMCalculatorOptions] {} } }", 2, "needs a domain"),
        ("node {\n node_options { type_url: 'a/' } }", 2, "names no known type"),
        ("node {\n node_options { type_url: 'mediapipe.LLMCalculatorOptions' } }", 2, "needs a domain"),
        ("node {\n node_options { type_url: 'a/mediapipe.Nope' } }", 2, "unknown option type mediapipe.Nope"),
        (
            "node {\n node_options { type_url: 'a/mediapipe.InputStreamInfo' value: '\\007' } }",
            2,
            "not a serialized",
        ),
        ("node {\n node_options { type_url: 'a/mediapipe.RerankCalculatorOVOptions' } }", 2, "required"),
        (
            "node {\n node_options {\n [a/mediapipe.RerankCalculatorOVOptions] {} } }",
            3,
            "models_path: required",
        ),
        ("graph_options {}\ngraph_options { [a/mediapipe.Nope] {} }", 2, "unknown option type"),
        (
            "input_stream_handler {\n options { [mediapipe.Nope.ext] {} } }",
            2,
            "unknown extension.*known: .*SyncSet",
        ),
        (
            "node {\n options { [mediapipe.LLMCalculatorOption.ext] {} } }",
            2,
            "did you mean .*LLMCalculatorOptions",
        ),
        ("node {\n options { [mediapipe.SyncSetInputStreamHandlerOptions.ext] {} } }", 2, "does not extend"),
        ("\n[mediapipe.Nope.ext] {}", 2, "does not have extensions"),
        ("num_threads: 1\nnum_threads: 2", 2, "multiple"),
        ("\n\nnode_option {}", 3, "no such field; did you mean options"),
        ('node {\n name: "a"\n', 2, 'Expected "}"'),
        ("node {}\n}", 2, "got }"),
        ('node {\n calculator: "One"\nnode {}\n}', 3, "is a closing brace missing before it"),
    ],
)
def test_refused_elsewhere(text: str, line: int, says: str) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        parse_graph(text)
    assert caught.value.line == line


def test_two_values_in_one_any_are_refused() -> None:
    any_ = "[type.googleapis.com/mediapipe.LLMCalculatorOptions] {}"
    for second in (any_, "type_url: 'a/mediapipe.InputStreamInfo'"):
        with pytest.raises(LoadError, match="second value") as caught:
            parse_graph(f"node {{ node_options {{ {any_}\n{second} }} }}")
        assert caught.value.line == 2


def test_messages_outside_the_private_pool_stay_unknown() -> None:
    assert descriptor_pb2.FileDescriptorProto.DESCRIPTOR.full_name == "google.protobuf.FileDescriptorProto"
    with pytest.raises(LoadError, match=r"unknown option type google\.protobuf\.FileDescriptorProto"):
        parse_graph("node { node_options { [a/google.protobuf.FileDescriptorProto] {} } }")

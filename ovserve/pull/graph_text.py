"""The graph.pbtxt that pull writes: the one OVMS's `--pull --task text_generation` writes for the same flags.

Names and defaults are OVMS's (src/graph_export and its command line, 2026.4). Its
comment OVMS_GRAPH_QUEUE_MAX_SIZE is left out, because this server does not pool graphs.

The graph.pbtxt of `ovserve pull --explicit`: the same as five nodes, with room for one's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ovserve.errors import InvalidArgument

FIVE_BEFORE = """\
input_stream: "HTTP_REQUEST_PAYLOAD:http"
output_stream: "HTTP_RESPONSE_PAYLOAD:reply"

node {
  name: "Frontend"
  calculator: "HttpFrontendCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:http"
  output_stream: "DECODED:decoded"
}

node {
  name: "RequestParser"
  calculator: "RequestParserCalculator"
  input_stream: "DECODED:decoded"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "GENERATE:generate"
}

node {
  name: "LLMExecutor"
  calculator: "LLMExecutorCalculator"
  input_stream: "GENERATE:generate"
  input_stream: "LOOPBACK:loopback"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "DELTA:delta"
  output_stream: "LOOPBACK:loopback"
  input_stream_info { tag_index: "LOOPBACK:0" back_edge: true }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler"
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } }
    }
  }
  node_options {
    [type.googleapis.com/mediapipe.LLMCalculatorOptions] {
"""
FIVE_AFTER = """\
    }
  }
}

node {
  name: "OutputParser"
  calculator: "OutputParserCalculator"
  input_stream: "GENERATE:generate"
  input_stream: "DELTA:delta"
  output_stream: "PARSED:parsed"
}

node {
  name: "ResponseWriter"
  calculator: "ResponseWriterCalculator"
  input_stream: "GENERATE:generate"
  input_stream: "PARSED:parsed"
  output_stream: "HTTP_RESPONSE_PAYLOAD:reply"
}
"""


OptionValue = int | bool | str | float
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,6})?")


@dataclass(frozen=True)
class GraphOption:
    """A flag of the text_generation task. `default` None: the field is left out unless the flag is given."""

    name: str
    kind: type[int] | type[bool] | type[str] | type[float]
    default: OptionValue | None
    help: str
    choices: tuple[str, ...] = ()
    field: str = ""  # field of LLMCalculatorOptions, if it is not the flag's name
    property: str = ""  # or a key of plugin_config

    def parse(self, text: str) -> OptionValue:
        """Raises InvalidArgument."""
        if self.kind is bool:
            if text not in ("true", "false"):
                raise InvalidArgument(f"expected true or false, got {text!r}")
            return text == "true"
        if self.kind is int:
            if not (text.isascii() and text.isdigit()):
                raise InvalidArgument(f"expected a whole number, got {text!r}")
            return int(text)
        if self.kind is float:
            if not _NUMBER.fullmatch(text):
                raise InvalidArgument(f"expected a number from 0 on, got {text!r}")
            return float(text)
        if self.choices and text not in self.choices:
            raise InvalidArgument(f"expected one of {', '.join(self.choices)}, got {text!r}")
        return text


PIPELINES = ("LM", "LM_CB", "VLM", "VLM_CB", "OMNI", "AUTO")
ENGINES = ("genai", "paged")
POLICIES = ("TENSOR_PARALLEL", "PIPELINE_PARALLEL")

# In the order in which they are written.
OPTIONS = (
    GraphOption("max_num_seqs", int, 256, "sequences generated concurrently"),
    GraphOption("target_device", str, "CPU", "device, such as CPU, GPU, GPU.1, AUTO", field="device"),
    GraphOption("plugin_config", str, "", "JSON object with properties of the device"),
    GraphOption("enable_prefix_caching", bool, True, "reuse the KV cache of common prompt prefixes"),
    GraphOption("cache_size", int, 0, "KV cache in GB; 0 lets it grow"),
    GraphOption(
        "prefix_cache_path",
        str,
        None,
        "directory that keeps prefixes over restarts, relative to the graph's; unknown to OVMS",
    ),
    GraphOption("prefix_cache_size", int, None, "GB of that directory (default: 4); unknown to OVMS"),
    GraphOption("pipeline_type", str, None, "which pipeline of the engine", PIPELINES),
    GraphOption("engine", str, None, "which engine runs the model; unknown to OVMS", ENGINES),
    GraphOption(
        "max_model_len", int, None, "tokens of a request's context; by default the model's; unknown to OVMS"
    ),
    GraphOption("max_num_batched_tokens", int, None, "tokens of one step"),
    GraphOption(
        "reasoning_parser", str, None, "reasoning format; detected from the chat template if not given"
    ),
    GraphOption("tool_parser", str, None, "tool call format; detected from the chat template if not given"),
    GraphOption("enable_tool_guided_generation", bool, None, "constrain tool calls to their schemas"),
    GraphOption(
        "generic_tool_prompt",
        bool,
        None,
        "put tools into the system message if the chat template does not support them; unknown to OVMS",
    ),
    GraphOption("dynamic_split_fuse", bool, None, "process a long prompt in several steps"),
    GraphOption("cache_interval_multiplier", int, None, "blocks of the cache per interval"),
    GraphOption("draft_device", str, None, "device of the draft model; by default that of the model"),
    GraphOption("draft_eagle3_mode", bool, None, "the draft model is an EAGLE3 head"),
    GraphOption("max_prompt_len", int, None, "longest prompt, for NPU", property="MAX_PROMPT_LEN"),
    GraphOption(
        "kv_cache_precision", str, None, "type of the KV cache, such as u8", property="KV_CACHE_PRECISION"
    ),
    GraphOption(
        "model_distribution_policy",
        str,
        None,
        "how a model is spread over sockets or devices",
        POLICIES,
        property="MODEL_DISTRIBUTION_POLICY",
    ),
)

NODE = """\
input_stream: "{prefix}REQUEST_PAYLOAD:input"
output_stream: "{prefix}RESPONSE_PAYLOAD:output"

node {{
  name: "{name}Executor"
  calculator: "{calculator}"
  input_side_packet: "{packet}"
{ports}  input_stream: "{prefix}REQUEST_PAYLOAD:input"
  output_stream: "{prefix}RESPONSE_PAYLOAD:output"
  node_options: {{
    [type.googleapis.com / mediapipe.{message}]: {{
{fields}    }}
  }}
{handler}}}
"""
LOOP_PORTS = """\
  input_stream: "LOOPBACK:loopback"
  output_stream: "LOOPBACK:loopback"
  input_stream_info: {
    tag_index: 'LOOPBACK:0',
    back_edge: true
  }
"""
LOOP_HANDLER = """\
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler",
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] {
        sync_set {
          tag_index: "LOOPBACK:0"
        }
      }
    }
  }
"""


@dataclass(frozen=True)
class GraphTask:
    """A graph of one node, with OVMS's names."""

    title: str  # in messages
    calculator: str
    packet: str  # tag and name of its side packet
    options: tuple[GraphOption, ...]  # in the order in which they are written
    prefix: str = "HTTP_"  # of the tags of its streams
    loops: bool = False  # it has LOOPBACK

    def fields(self, options: Mapping[str, OptionValue], models_path: str, more: Sequence[str]) -> str:
        """Return the lines of its options; `more` are further ones.

        Raises InvalidArgument for an option of another task or a wrong plugin_config.
        """
        if unknown := next((name for name in options if name not in {o.name for o in self.options}), ""):
            raise InvalidArgument(f"--{unknown} is not an option of {self.title}")
        values = {option.name: options.get(option.name, option.default) for option in self.options}
        flags = {o.name: (o.property, values[o.name]) for o in self.options if o.property}
        lines = [f"models_path: {quoted(models_path)},"]
        for option in self.options:
            value = values[option.name]
            if option.name == "plugin_config":
                properties = properties_of(value, flags)
                if properties or value is not None:
                    text = json.dumps(properties) if properties else "{ }"
                    lines.append(f"plugin_config: {single_quoted(text)},")
            elif value is not None and not option.property:
                lines.append(f"{option.field or option.name}: {literal(option, value)},")
        return "".join(f"      {line}\n" for line in (*lines, *more))

    def graph(self, fields: str) -> str:
        name = self.calculator.removeprefix("Http").removesuffix("OV").removesuffix("Calculator")
        return NODE.format(
            name=name,
            calculator=self.calculator,
            packet=self.packet,
            message=f"{self.calculator.removeprefix('Http')}Options",
            fields=fields,
            prefix=self.prefix,
            ports=LOOP_PORTS if self.loops else "",
            handler=LOOP_HANDLER if self.loops else "",
        )


TEXT = GraphTask("text generation", "HttpLLMCalculator", "LLM_NODE_RESOURCES:llm", OPTIONS, loops=True)


def graph_text(
    options: Mapping[str, OptionValue],
    models_path: str,
    draft_path: str = "",
    *,
    heading: str = "",
    explicit: bool = False,
) -> str:
    """Return the text. `options` by option name; `explicit`: five nodes in place of one.

    Raises InvalidArgument for an option of another task or a wrong plugin_config.
    """
    more = [f"draft_models_path: {quoted(draft_path)},"] if draft_path else []
    fields = TEXT.fields(options, models_path, more)
    return comment(heading) + (FIVE_BEFORE + fields + FIVE_AFTER if explicit else TEXT.graph(fields))


def comment(heading: str) -> str:
    return "".join(f"# {line}\n" for line in heading.splitlines())


def properties_of(text: Any, flags: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the properties in plugin_config, and those of flags: by name, the property and its value.

    Raises InvalidArgument for another text, and for a property that is given twice.
    """
    try:
        properties = json.loads(text or "{}")
    except ValueError:
        properties = None
    if not isinstance(properties, dict):
        raise InvalidArgument(f"--plugin_config: expected a JSON object, got {text!r}")
    for name, (key, value) in flags.items():
        if value is not None:
            if key in properties:
                raise InvalidArgument(f"--{name}: {key} is in plugin_config too")
            properties[key] = value
    return properties


def literal(option: GraphOption, value: OptionValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    is_enum = option.choices not in ((), ENGINES)
    return str(value) if is_enum or option.kind in (int, float) else quoted(str(value))


def quoted(text: str) -> str:
    return '"' + _escaped(text).replace('"', '\\"') + '"'


def single_quoted(text: str) -> str:
    return "'" + _escaped(text).replace("'", "\\'") + "'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")

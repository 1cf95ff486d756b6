"""The graph.pbtxt that pull writes for tasks other than text generation, with OVMS's flags.

Names, defaults and the order of fields are OVMS's (src/graph_export and its command line, 2026.4).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ovserve.errors import InvalidArgument
from ovserve.pull.graph_text import GraphOption, OptionValue, literal, properties_of, quoted, single_quoted

EMBEDDINGS, RERANK, CLASSIFICATION = "embeddings", "rerank", "classification"
TEXT2SPEECH = "text2speech"
IMAGES, SPEECH2TEXT = "image_generation", "speech2text"
DEVICE = GraphOption("target_device", str, "CPU", "device, such as CPU, GPU, GPU.1, AUTO")
PROPERTIES = GraphOption("plugin_config", str, "", "JSON object with properties of the device")
TRUNCATE = GraphOption("truncate", bool, False, "embeddings, classification: cut inputs that are too long")
LENGTH = GraphOption(
    "max_length", int, None, "embeddings, classification: tokens of an input; by default what fits"
)
STREAMS = GraphOption(
    "num_streams", int, None, "streams of the device, except for text generation", property="NUM_STREAMS"
)


@dataclass(frozen=True)
class EncoderTask:
    node: str
    calculator: str
    tag: str
    packet: str
    message: str
    options: tuple[GraphOption, ...]
    prefix: str = ""  # of the tags of its streams
    loops: bool = False  # it has LOOPBACK


TASKS = {
    EMBEDDINGS: EncoderTask(
        "EmbeddingsExecutor",
        "EmbeddingsCalculatorOV",
        "EMBEDDINGS_NODE_RESOURCES",
        "embeddings_servable",
        "EmbeddingsCalculatorOVOptions",
        (
            GraphOption(
                "normalize", bool, True, "embeddings: vectors of unit length", field="normalize_embeddings"
            ),
            TRUNCATE,
            LENGTH,
            GraphOption(
                "pooling",
                str,
                None,
                "embeddings: pooling of token vectors; by default that of the model's files",
                ("CLS", "LAST", "MEAN"),
            ),
            DEVICE,
            PROPERTIES,
            STREAMS,
        ),
    ),
    RERANK: EncoderTask(
        "RerankExecutor",
        "RerankCalculatorOV",
        "RERANK_NODE_RESOURCES",
        "rerank_servable",
        "RerankCalculatorOVOptions",
        (
            GraphOption(
                "max_allowed_chunks", int, 10000, "rerank: documents of a request, and pieces of them"
            ),
            DEVICE,
            PROPERTIES,
            STREAMS,
        ),
    ),
    CLASSIFICATION: EncoderTask(
        "ClassificationExecutor",
        "ClassificationCalculatorOV",
        "CLASSIFICATION_NODE_RESOURCES",
        "classification_servable",
        "ClassificationCalculatorOVOptions",
        (TRUNCATE, LENGTH, DEVICE, PROPERTIES, STREAMS),
    ),
    TEXT2SPEECH: EncoderTask(
        "T2sExecutor",
        "T2sCalculator",
        "TTS_NODE_RESOURCES",
        "t2s_servable",
        "T2sCalculatorOptions",
        (DEVICE, PROPERTIES, STREAMS),
        "HTTP_",
    ),
    IMAGES: EncoderTask(
        "ImageGenExecutor",
        "ImageGenCalculator",
        "IMAGE_GEN_NODE_RESOURCES",
        "pipes",
        "ImageGenCalculatorOptions",
        (
            GraphOption("resolution", str, None, "images: the only sizes, such as '512x512 768x768'"),
            GraphOption("max_resolution", str, None, "images: the largest size, such as 1024x1024"),
            GraphOption("default_resolution", str, None, "images: the size of requests without one"),
            GraphOption(
                "num_images_per_prompt", int, None, "images: the only number of images, with one resolution"
            ),
            GraphOption("guidance_scale", float, None, "images: the only guidance, with one resolution"),
            GraphOption(
                "max_num_images_per_prompt", int, None, "images: the largest number of images of a request"
            ),
            GraphOption(
                "default_num_inference_steps", int, None, "images: steps of requests without a number"
            ),
            GraphOption("max_num_inference_steps", int, None, "images: the most steps of a request"),
            GraphOption("target_device", str, "CPU", DEVICE.help, field="device"),
            PROPERTIES,
            STREAMS,
        ),
        "HTTP_",
    ),
    SPEECH2TEXT: EncoderTask(
        "S2tExecutor",
        "S2tCalculator",
        "STT_NODE_RESOURCES",
        "s2t_servable",
        "S2tCalculatorOptions",
        (
            DEVICE,
            PROPERTIES,
            STREAMS,
            GraphOption(
                "enable_word_timestamps", bool, False, "speech2text: allow requests for times of words"
            ),
        ),
        "HTTP_",
        loops=True,
    ),
}
SHARED = (DEVICE.name, PROPERTIES.name)
# Those that text generation does not have.
OPTIONS = tuple(
    dict.fromkeys(option for task in TASKS.values() for option in task.options if option.name not in SHARED)
)

TEXT = """\
input_stream: "{prefix}REQUEST_PAYLOAD:input"
output_stream: "{prefix}RESPONSE_PAYLOAD:output"

node {{
  name: "{node}"
  calculator: "{calculator}"
  input_side_packet: "{tag}:{packet}"
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


def encoder_graph(
    task: str,
    options: Mapping[str, OptionValue],
    models_path: str,
    heading: str = "",
    more: Sequence[str] = (),
) -> str:
    """Return the text; `more` are further lines of options.

    Raises InvalidArgument for an option of another task or a wrong plugin_config.
    """
    of = TASKS[task]
    options_by_name = {option.name: option for option in of.options}
    for name in options:
        if name not in options_by_name:
            raise InvalidArgument(f"--{name} is not an option of the task {task}")
    values = {option.name: options.get(option.name, option.default) for option in of.options}
    flags = {"num_streams": ("NUM_STREAMS", values.pop("num_streams"))}
    properties = properties_of(str(values.pop("plugin_config")), flags)
    fields = [("models_path", quoted(models_path))]
    for name, value in values.items():
        if value is not None:
            option = options_by_name[name]
            fields.append((option.field or name, literal(option, value)))
    if properties:
        fields.append(("plugin_config", single_quoted(json.dumps(properties))))
    lines = "".join(f"      {name}: {text},\n" for name, text in fields)
    lines += "".join(f"      {line}\n" for line in more)
    before = "".join(f"# {line}\n" for line in heading.splitlines())
    return before + TEXT.format(
        node=of.node,
        calculator=of.calculator,
        tag=of.tag,
        packet=of.packet,
        message=of.message,
        fields=lines,
        prefix=of.prefix,
        ports=LOOP_PORTS if of.loops else "",
        handler=LOOP_HANDLER if of.loops else "",
    )

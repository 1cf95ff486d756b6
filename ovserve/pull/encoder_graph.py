"""The graph.pbtxt that pull writes for tasks other than text generation, with OVMS's flags.

Names and defaults are OVMS's (src/graph_export and its command line, 2026.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ovserve.pull.graph_text import GraphOption, GraphTask, OptionValue, comment

EMBEDDINGS, RERANK, CLASSIFICATION = "embeddings", "rerank", "classification"
TEXT2SPEECH = "text2speech"
IMAGES, SPEECH2TEXT = "image_generation", "speech2text"
DEVICE = GraphOption("target_device", str, "CPU", "device, such as CPU, GPU, GPU.1, AUTO")
PROPERTIES = GraphOption("plugin_config", str, None, "JSON object with properties of the device")
TRUNCATE = GraphOption("truncate", bool, False, "embeddings, classification: cut inputs that are too long")
LENGTH = GraphOption(
    "max_length", int, None, "embeddings, classification: tokens of an input; by default what fits"
)
STREAMS = GraphOption(
    "num_streams", int, None, "streams of the device, except for text generation", property="NUM_STREAMS"
)


TASKS = {
    EMBEDDINGS: GraphTask(
        f"the task {EMBEDDINGS}",
        "EmbeddingsCalculatorOV",
        "EMBEDDINGS_NODE_RESOURCES:embeddings_servable",
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
        prefix="",
    ),
    RERANK: GraphTask(
        f"the task {RERANK}",
        "RerankCalculatorOV",
        "RERANK_NODE_RESOURCES:rerank_servable",
        (
            GraphOption(
                "max_allowed_chunks", int, 10000, "rerank: documents of a request, and pieces of them"
            ),
            DEVICE,
            PROPERTIES,
            STREAMS,
        ),
        prefix="",
    ),
    CLASSIFICATION: GraphTask(
        f"the task {CLASSIFICATION}",
        "ClassificationCalculatorOV",
        "CLASSIFICATION_NODE_RESOURCES:classification_servable",
        (TRUNCATE, LENGTH, DEVICE, PROPERTIES, STREAMS),
        prefix="",
    ),
    TEXT2SPEECH: GraphTask(
        f"the task {TEXT2SPEECH}",
        "T2sCalculator",
        "TTS_NODE_RESOURCES:t2s_servable",
        (DEVICE, PROPERTIES, STREAMS),
    ),
    IMAGES: GraphTask(
        f"the task {IMAGES}",
        "ImageGenCalculator",
        "IMAGE_GEN_NODE_RESOURCES:pipes",
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
    ),
    SPEECH2TEXT: GraphTask(
        f"the task {SPEECH2TEXT}",
        "S2tCalculator",
        "STT_NODE_RESOURCES:s2t_servable",
        (
            DEVICE,
            PROPERTIES,
            STREAMS,
            GraphOption(
                "enable_word_timestamps", bool, False, "speech2text: allow requests for times of words"
            ),
        ),
        loops=True,
    ),
}
SHARED = (DEVICE.name, PROPERTIES.name)
# Those that text generation does not have.
OPTIONS = tuple(
    dict.fromkeys(option for task in TASKS.values() for option in task.options if option.name not in SHARED)
)


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
    return comment(heading) + TASKS[task].graph(TASKS[task].fields(options, models_path, more))

"""The list of the shipped calculators, which the server's registry starts from.

It imports all of them and with them every API, so what needs only the options of a node imports those
alone. A new calculator is a file in this package and a row here.
"""

from ovserve.calculators import realtime, realtime_audio
from ovserve.calculators.library import answerer, conversation, mcp_servers, streams, text_filter
from ovserve.graph import Registry
from ovserve.kinds.encoders import node as encoder_node
from ovserve.kinds.images import node as image_generation
from ovserve.kinds.python import node as python_node
from ovserve.kinds.speech import node as speech_to_text
from ovserve.kinds.tensors import inference
from ovserve.kinds.tensors import node as plain_model_node
from ovserve.kinds.text import node as text_node
from ovserve.kinds.voice import node as text_to_speech

MODULES = (
    encoder_node,
    image_generation,
    inference,
    plain_model_node,
    python_node,
    speech_to_text,
    text_node,
    text_to_speech,
    realtime,
    realtime_audio,
    answerer,
    conversation,
    mcp_servers,
    streams,
    text_filter,
)


def shipped_registry() -> Registry:
    """Return these calculators and those of installed packages."""
    registry = Registry(MODULES)
    registry.add_entry_points()
    return registry

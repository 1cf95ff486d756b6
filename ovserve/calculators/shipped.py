"""The list of the shipped calculators, which the server's registry starts from.

It imports all of them and with them every API, so what needs only the options of a node imports those
alone. A new calculator is a file in this package and a row here.
"""

from ovserve.calculators import (
    adapter,
    embeddings,
    http_frontend,
    http_llm,
    image_generation,
    inference,
    library,
    llm_executor,
    output_parser,
    pass_through,
    plain_model_node,
    python_converter,
    python_node,
    realtime,
    realtime_audio,
    request_parser,
    rerank,
    response_writer,
    session,
    speech_to_text,
    text_to_speech,
)

MODULES = (
    adapter,
    embeddings,
    http_frontend,
    http_llm,
    image_generation,
    inference,
    llm_executor,
    output_parser,
    pass_through,
    plain_model_node,
    python_converter,
    python_node,
    realtime,
    request_parser,
    rerank,
    response_writer,
    session,
    text_to_speech,
    speech_to_text,
    realtime,
    realtime_audio,
    *library.MODULES,
)

__all__ = ["MODULES"]

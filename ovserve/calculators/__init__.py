"""The graph nodes shipped with the server: thin shells over `api/openai/`, `llm/` and `engine/`.

`MODULES` is what the server's registry starts from; a new calculator is a file here and a row there.
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
    request_parser,
    rerank,
    response_writer,
    session,
    text_to_speech,
    speech_to_text,
    *library.MODULES,
)

__all__ = ["MODULES"]

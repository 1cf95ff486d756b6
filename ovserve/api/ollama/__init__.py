"""Ollama's API: its chat and generate as endpoints, the forms of its answers about models, and what its
paths say of themselves.

Built on the messages, tools and sampling of `api/openai/`; joined with the other API styles in
`kinds/text/resource.py`. `http/routes/ollama.py` has the paths.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.ollama.body import (
    ChatRequest,
    Embedding,
    Embeddings,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OfModel,
    Processes,
    Shown,
    Tags,
    Version,
)
from ovserve.api.ollama.endpoints import Chat, Generate, Line
from ovserve.api.openai.operation import Operation, Refused

ENDPOINTS = {endpoint.name: endpoint for endpoint in (Chat(), Generate())}
_CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello"}], "stream": False}


class Progress(msgspec.Struct, kw_only=True):
    """A line of /api/pull; the last one says success."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


OPERATIONS = (
    Operation(
        "POST", "/api/chat", "Ollama's chat; a line of JSON per piece unless stream is false.",
        answer=Line, request=ChatRequest, example=_CHAT, defaults={"stream": True}, needs_template=True,
    ),
    Operation(
        "POST", "/api/generate", "Ollama's answer to one prompt, or to code around a gap.",
        answer=Line, request=GenerateRequest, example={"model": "smollm2", "prompt": "Hi", "stream": False},
        defaults={"stream": True, "raw": False},
        refused={
            "template": Refused("templates are the graph's", ("",)),
            "context": Refused("send the conversation to /api/chat", ([],)),
        },
    ),
    Operation("GET", "/api/tags", "The graphs served, as Ollama lists models.", answer=Tags),
    Operation("GET", "/api/ps", "The same, with the memory their engines hold.", answer=Processes),
    Operation(
        "POST", "/api/show", "What is known of one model.", answer=Shown, request=OfModel,
        of_models=False,
    ),
    Operation("GET", "/", "The text by which Ollama's clients know that it is up.", answer=str),
    Operation("GET", "/api/version", "The release of Ollama whose API this is.", answer=Version),
    Operation(
        "POST", "/api/embed", "Embeddings of a graph that serves them, in Ollama's form.",
        answer=Embeddings, request=EmbedRequest, of_models=False,
    ),
    Operation(
        "POST", "/api/embeddings", "The older form of /api/embed.",
        answer=Embedding, request=EmbeddingsRequest, of_models=False,
    ),
    Operation(
        "POST", "/api/pull", "Fetch a model and serve it, with progress as lines; needs admin rights.",
        answer=Progress, request=OfModel, defaults={"stream": True}, of_models=False,
    ),
)  # fmt: skip

"""A servable's model in Ollama's form: sizes, context, capabilities. Files are read in a thread."""

from __future__ import annotations

import asyncio
import os
import re

from ovserve.api.ollama.body import Described
from ovserve.engine.model.files import read_model_files
from ovserve.errors import LoadError
from ovserve.kinds.encoders.spec import EmbeddingFacts
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.model import ModelContext
from ovserve.serving.model_size import weights
from ovserve.serving.servable import Servable

EMBEDDINGS = "embeddings"  # the endpoint
QUANTIZATION = re.compile(r"(?<![A-Za-z0-9])(I?Q\d\w*|B?F16|F32|INT[48])(?![A-Za-z0-9])", re.IGNORECASE)
# Ollama's names of sampling defaults, and those of generation_config.json.
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repeat_penalty": "repetition_penalty",
}


async def describe(servable: Servable) -> Described:
    """Return the description. It holds what is known; a graph without a language model has little."""
    engines = list(servable.engines.values())
    path = engines[0].spec.model_path if engines else ""
    contexts = servable.contexts
    resources = [r for r in servable.resources.values() if isinstance(r, LlmResources)]
    size, held, family = await asyncio.to_thread(
        lambda: (_weights(path), sum(e.memory_held for e in engines), _family(path))
    )
    quantization = QUANTIZATION.search(os.path.basename(path))
    model = contexts[0] if contexts else ModelContext()
    return Described(
        name=servable.name,
        created=servable.created,
        identity=resources[0].fingerprint if resources else path,
        size=size,
        held=held,
        context=servable.max_length or 0,
        dimensions=next((f.dimensions for e in engines if isinstance(f := e.facts, EmbeddingFacts)), 0),
        format="gguf" if path.endswith(".gguf") else "openvino",
        family=family,
        quantization=quantization[0].upper() if quantization else "",
        template=model.template.source if model.template is not None else "",
        parameters={
            ollama: model.defaults[ours] for ollama, ours in PARAMETERS.items() if ours in model.defaults
        },
        capabilities=_capabilities(servable, contexts),
    )


def _capabilities(servable: Servable, contexts: list[ModelContext]) -> list[str]:
    if not contexts:
        return ["embedding"] if EMBEDDINGS in servable.endpoints else []
    model = contexts[0]
    there = {
        "completion": True,
        "tools": model.lacks_tools is None,
        "insert": model.fim is not None,
        "vision": model.vision is not None,
        "thinking": bool(model.parsers.reasoning),
    }
    return [name for name, can in there.items() if can]


def _weights(path: str) -> int:
    try:
        return weights(path) if path else 0
    except OSError:
        return 0


def _family(path: str) -> str:
    try:
        facts = read_model_files(path)
    except (LoadError, OSError):
        return ""
    return facts.model_type or facts.architecture

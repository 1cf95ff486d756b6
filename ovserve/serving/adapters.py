"""LoRA adapters of language models as servables: the graph of their parent, with the adapter in its engine.

The library cannot mix adapters in a batch, so each is fused into an engine of its own. The files of the model
are mapped, so engines share what is not changed through the page cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from ovserve.engine.model.lora import adapter_file, scaling
from ovserve.engine.protocol.specs import LoraAdapter, TextSpec
from ovserve.errors import LoadError
from ovserve.graph.config import GraphConfig
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.serving.engine_nodes import EngineNode
from ovserve.serving.spec import AdapterOf, ServableSpec

log = logging.getLogger(__name__)


def adapters_of(spec: ServableSpec, config: GraphConfig) -> list[ServableSpec]:
    """Return the servables of the adapters that the nodes of a graph list."""
    found = []
    for i, node in enumerate(config.message.node):
        options = config.options(i, LLMCalculatorOptions) if "LLM" in node.calculator else None
        for entry in options.lora_adapters if options is not None else ():
            adapter = AdapterOf(spec.name, (config.base / entry.path).resolve(), entry.alpha, node.name)
            found.append(replace(spec, name=entry.alias, adapter=adapter, group=""))
    return found


def with_adapters(specs: Iterable[ServableSpec], configs: Mapping[str, GraphConfig]) -> list[ServableSpec]:
    """Return the servables and those of their adapters. A name that is taken keeps its servable."""
    made = {spec.key: spec for spec in specs}
    for key, config in configs.items():
        for spec in adapters_of(made[key], config):
            if spec.key in made and made[spec.key].adapter != spec.adapter:
                log.error("%s: the alias %r of an adapter is a name already", key, spec.name)
            else:
                made.setdefault(spec.key, spec)
    return list(made.values())


def with_adapter(nodes: Mapping[str, EngineNode], adapter: AdapterOf) -> dict[str, EngineNode]:
    """Return the engines of a graph with the adapter in the one it belongs to. Raises LoadError."""
    texts = {packet: node for packet, node in nodes.items() if isinstance(node.spec, TextSpec)}
    named = {packet: node for packet, node in texts.items() if adapter.node in ("", node.node.name)}
    if len(named) != 1:
        raise LoadError(
            f"the adapter needs one model that generates text in batches, and {adapter.parent!r} has "
            f"{len(named)}",
            field="lora_adapters",
        )
    ((packet, found),) = named.items()
    spec = found.spec
    if isinstance(spec, TextSpec) and spec.decoding == "paged":
        if found.fallback is None:
            raise found.node.error('an adapter needs engine: "genai", got "paged"', "engine")
        spec = found.fallback
    try:
        file = adapter_file(adapter.path)
        alpha = adapter.alpha * scaling(file)
    except LoadError as error:
        raise found.node.error(error.reason, "lora_adapters") from error
    spec = msgspec.structs.replace(spec, adapter=LoraAdapter(str(file), alpha))
    return {**nodes, packet: replace(found, spec=spec, fallback=None)}

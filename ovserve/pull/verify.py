"""`ovserve pull --verify`: load the pulled model as the server would, and generate one token."""

from __future__ import annotations

import time
from pathlib import Path

from ovserve.engine.client.call_client import CallClient
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.encoders import EmbeddingFacts
from ovserve.engine.protocol.specs import GenerationSpec, Spec, StatefulTextSpec, TextSpec
from ovserve.errors import LoadError
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.pull.graph_file import check_file
from ovserve.serving.engines import FIELD, convert_spec
from ovserve.serving.settings import Convert
from ovserve.serving.spec import GRAPH_FILE

PROMPT = "The capital of France is"


async def verify(directory: Path, convert: Convert) -> str:
    """Return the result in words. Raises LoadError, or the error that ended the request."""
    checked = check_file(directory, GRAPH_FILE)
    checked.graph.close()
    if not checked.engine_specs:
        raise LoadError("no node of the graph holds a model", file=str(directory / GRAPH_FILE))
    said = []
    for engine in checked.engines.values():
        spec, fallback = engine.spec, engine.fallback
        if not isinstance(spec, TextSpec | StatefulTextSpec):
            said.append(await _encode(spec))
            continue
        try:
            said.append(await _generate(await convert_spec(spec, convert)))
        except LoadError as error:
            if error.field != FIELD or not isinstance(fallback, TextSpec):
                raise
            said.append(await _generate(fallback))
    return "; ".join(said)


async def _encode(spec: Spec) -> str:
    """Load an encoder, which runs an inference of its own when it is loaded."""
    began = time.monotonic()
    engine = await CallClient.start(spec)
    loaded = time.monotonic() - began
    facts = engine.facts
    await engine.stop()
    size = f", vectors of {facts.dimensions} values" if isinstance(facts, EmbeddingFacts) else ""
    return f"verified: loaded in {loaded:.1f} s{size}"


async def _generate(spec: GenerationSpec) -> str:
    began = time.monotonic()
    engine = await TextClient.start(spec)
    try:
        loaded = time.monotonic() - began
        stream = await engine.generate(
            GenerateRequest(
                id="verify",
                prompts=(PROMPT,),
                add_special_tokens=True,
                sampling=Sampling(max_tokens=1, temperature=0.0),
            )
        )
        text, tokens = "", 0
        while True:
            delta = await stream.next()
            text, tokens = text + delta.text, tokens + delta.tokens
            if delta.last:
                break
    finally:
        await engine.stop()
    if not tokens:
        raise LoadError("loaded, but generated nothing", file=spec.model_path)
    return f"verified: loaded in {loaded:.1f} s, and goes on after {PROMPT!r} with {text!r}"

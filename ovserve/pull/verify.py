"""`ovserve pull --verify`: load the pulled model as the server would, and generate one token."""

from __future__ import annotations

import time
from pathlib import Path

from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import GenerationSpec, StatefulTextSpec, TextSpec
from ovserve.errors import LoadError
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.pull.graph_file import check_file
from ovserve.serving.spec import GRAPH_FILE

PROMPT = "The capital of France is"


async def verify(directory: Path) -> str:
    """Return the result in words. Raises LoadError, or the error that ended the request."""
    checked = check_file(directory, GRAPH_FILE)
    checked.graph.close()
    if not checked.engine_specs:
        raise LoadError("no node of the graph holds a model", file=str(directory / GRAPH_FILE))
    specs = [s for s in checked.engine_specs.values() if isinstance(s, TextSpec | StatefulTextSpec)]
    return "; ".join([await _generate(spec) for spec in specs])


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

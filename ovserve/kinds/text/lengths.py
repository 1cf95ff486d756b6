"""Explains why a prompt does not fit: the tokens of each of its parts, and what would fit.

Used by the two nodes that hold an engine, when the engine says ContextLengthExceeded; counting costs nothing
until then, and one that is too long by its bytes alone is never counted. Parts are counted by themselves, so
the template's own tokens and the seams between parts are what is left over.
"""

from __future__ import annotations

from ovserve.engine.client.lengths import TooLongUncounted
from ovserve.engine.protocol.admission import context_limit
from ovserve.errors import ContextLengthExceeded, OvserveError
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.request import GenerateRequest

TEMPLATE = "template"
PARAMS = {"completions": "prompt", "responses": "input"}  # the field of an endpoint's prompt


async def explain(
    error: ContextLengthExceeded, llm: LlmResources, request: GenerateRequest
) -> ContextLengthExceeded:
    """Return the error with numbers by part; unchanged without parts, or if the engine has died."""
    limit = context_limit(llm.model.max_length, None, request.sampling.max_context)
    error.param = PARAMS.get(request.presentation.endpoint, "messages")
    if request.parts is None or limit is None or request.images:  # whose tokens are in no part
        return error
    if isinstance(error, TooLongUncounted):
        return error
    parts = request.parts()
    try:
        whole, *each = await llm.engine.tokenize(
            [str(request.prompts[0]), *(text for _, text in parts)],
            add_special_tokens=request.add_special_tokens,
        )
    except OvserveError:
        return error
    total, room = len(whole), limit - 1  # one token is left for the answer
    counts = {name: len(ids) for (name, _), ids in zip(parts, each, strict=True)}
    counts[TEMPLATE] = max(0, total - sum(counts.values()))
    over = total - room
    fits = {name: n - over for name, n in counts.items() if name != TEMPLATE and n >= over}
    listed = ", ".join(f"{name} {n}" for name, n in counts.items())
    explained = ContextLengthExceeded(
        f"{error.message} By part: {listed}. {_advice(fits, over)}",
        param=error.param,
    )
    explained.details = {"max_length": limit, "prompt_tokens": total, "parts": counts, "would_fit": fits}
    return explained


def _advice(fits: dict[str, int], over: int) -> str:
    if not fits:
        return f"No part alone can be cut enough: together they must lose {over}."
    return "It would fit with " + ", or ".join(f"at most {n} of {name}" for name, n in fits.items()) + "."

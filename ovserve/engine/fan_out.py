"""One client request as the engine requests it takes. Used by `client.py`."""

from __future__ import annotations

import msgspec

from ovserve.engine.messages import Add
from ovserve.llm.request import GenerateRequest


def engine_requests(request: GenerateRequest, first_id: int, *, last: bool = False) -> list[Add]:
    """Beams are the engine's; sampled choices become a request each, which streams them and lets a grammar
    hold for each of them (the library enforces none when it samples several itself). `last`: see Add."""
    sampling = request.sampling
    each = [sampling]
    if sampling.n > 1 and sampling.beams == 1:
        seeds = [(sampling.seed + i) % 2**64 for i in range(sampling.n)]
        each = [msgspec.structs.replace(sampling, n=1, seed=seed) for seed in seeds]
    wanted = [(prompt, one) for prompt in request.prompts for one in each]
    special, images = request.add_special_tokens, request.images
    end = len(wanted) - 1
    return [Add(first_id + i, p, special, s, images, last and i == end) for i, (p, s) in enumerate(wanted)]

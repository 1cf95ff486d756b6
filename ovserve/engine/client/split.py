"""Split one client request into the engine requests that it takes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ovserve.engine.protocol.messages import Add
from ovserve.llm.request import GenerateRequest


def engine_requests(
    request: GenerateRequest, first_id: int, *, last: bool = False, ids: Sequence[bytes] = ()
) -> list[Add]:
    """Beams stay with the engine; sampled choices become one request each.

    So each choice streams, and a grammar holds for each (the library enforces none when it samples several
    itself). `last`: see Add; `ids`: those of each prompt, if they were tokenized before.
    """
    sampling = request.sampling
    each = [sampling]
    if sampling.n > 1 and sampling.beams == 1:
        seeds = [(sampling.seed + i) % 2**64 for i in range(sampling.n)]
        each = [msgspec.structs.replace(sampling, n=1, seed=seed) for seed in seeds]
    known = ids or [b""] * len(request.prompts)
    wanted = [
        (prompt, of_it, one) for prompt, of_it in zip(request.prompts, known, strict=True) for one in each
    ]
    special, images = request.add_special_tokens, request.images
    end = len(wanted) - 1
    return [
        Add(first_id + i, prompt, special, one, images, last and i == end, of_it, request.batch)
        for i, (prompt, of_it, one) in enumerate(wanted)
    ]

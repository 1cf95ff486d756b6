"""Read a handle only when there is something to read.

- What the library does: `GenerationHandle.read()` waits for the next output, so on an empty handle it blocks
  the only thread that could make one. A handle without output may also give an empty dictionary, which means
  that the cache has no room for the request if its status is IGNORED, and nothing otherwise.
- Seen: by calling `read()` before a step; the process hangs.
- Versions: OpenVINO GenAI 2026.4.1.
- It can go when `read()` returns at once.
"""

from __future__ import annotations

import openvino_genai as ov_genai

from ovserve.kinds.text.worker.decoding.sequence import Part, Sequence
from ovserve.kinds.text.worker.genai.request import FINISH

_IGNORED = ov_genai.GenerationStatus.IGNORED


def read_parts(sequence: Sequence) -> list[Part] | None:
    """Return what the last step gave, None for nothing; no part at all means that the cache is full."""
    handle = sequence.handle
    if sequence.drafts is not None and handle.get_status() == _IGNORED:
        return []  # whatever there is to read are unchecked drafts
    if not handle.can_read():
        return None
    parts = [
        Part(
            p.generated_ids,
            p.generated_log_probs,
            p.score,
            FINISH[p.finish_reason],
        )
        for p in handle.read().values()
    ]
    return parts if parts or handle.get_status() == _IGNORED else None

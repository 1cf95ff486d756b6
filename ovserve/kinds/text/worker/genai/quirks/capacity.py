"""Measure how many tokens a bounded KV cache holds, once, at load.

- What the library does: it reports the size of its cache in bytes and its use in percent, but not what a
  token takes. A prompt of more tokens than the cache holds is never scheduled and ends without output, and
  so does an answer that outgrows it. So the context is no longer than this, and such a prompt is rejected.
- Seen: tests/engine/test_genai_engine.py, `test_a_prompt_that_can_never_fit_is_refused`.
- Versions: OpenVINO GenAI 2026.4.1.
- It can go when the metrics report the number of blocks.
"""

from __future__ import annotations

import openvino_genai as ov_genai

from ovserve.kinds.text.worker.genai.text import ids_tensor

PROBE_ID = (1 << 62) - 1  # no client's request, nor a measurement of `vision.py`


def cache_tokens(
    pipeline: ov_genai.ContinuousBatchingPipeline,
    config: ov_genai.GenerationConfig,
    block: int,
    added: int | None,
) -> int | None:
    """Return the capacity of an idle pipeline in tokens; None if the library does not report it.

    `config` asks for one token more than the first. One token takes a whole block of `block` tokens. `added`:
    tokens that a pipeline with a vision part adds to the text; None: it has none, and takes ids.
    """
    if added is None:
        handle = pipeline.add_request(PROBE_ID, ids_tensor((0,)), config)
    else:
        handle = pipeline.add_request(PROBE_ID, "a", [], config)
    pipeline.step()
    while handle.get_status() == ov_genai.GenerationStatus.RUNNING and not handle.can_read():
        pipeline.step()
    usage = pipeline.get_metrics().cache_usage
    handle.cancel()
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return round(-(-(1 + (added or 0)) // block) * 100 / usage) * block if usage > 0 else None

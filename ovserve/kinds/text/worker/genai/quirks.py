"""Workarounds for OpenVINO GenAI: what the library does, how it was seen, and when it can go.

More of them are in `continuous.py` (where it lacks room), `grammar.py`, `vision.py`, `stateful.py`,
`converter.py` (its import) and `options.py` (.gguf files).
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino_genai as ov_genai

from ovserve.engine.host.memory import BYTES_PER_GIB
from ovserve.engine.protocol.specs import TextSpec
from ovserve.kinds.text.worker.decoding import Part, Sequence
from ovserve.kinds.text.worker.genai.options import FINISH
from ovserve.kinds.text.worker.genai.text import ids_tensor

# Measure how many tokens a bounded KV cache holds, once, at load.
#
# - What the library does: it reports the size of its cache in bytes and its use in percent, but not what a
#   token takes. A prompt of more tokens than the cache holds is never scheduled and ends without output, and
#   so does an answer that outgrows it. So the context is no longer than this, and such a prompt is rejected.
# - Seen: tests/engine/test_genai_engine.py, `test_a_prompt_that_can_never_fit_is_refused`.
# - Versions: OpenVINO GenAI 2026.4.1.
# - It can go when the metrics report the number of blocks.


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


# Read a handle only when there is something to read.
#
# - What the library does: `GenerationHandle.read()` waits for the next output, so on an empty handle it
#   blocks the only thread that could make one. A handle without output may also give an empty dictionary,
#   which means that the cache has no room for the request if its status is IGNORED, and nothing otherwise.
# - Seen: by calling `read()` before a step; the process hangs.
# - Versions: OpenVINO GenAI 2026.4.1.
# - It can go when `read()` returns at once.


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


# Have a prompt read to its first token before its request is cancelled, where prefixes are cached.
#
# - What the library does: it names a block of the cache, when it allocates it, by all tokens that the block
#   is to hold. A prompt that is cancelled between two of its steps leaves its last block in the cache under
#   that name, with whatever the memory held in the rest. The next prompt with the same beginning takes it as
#   computed, and the answer is wrong: 24 of 24 prompts that were cancelled and sent again (SmolLM2, 100
#   tokens per step).
# - The way around: a cancelled request whose prompt may be half read stays in the library until it has a
#   token. That is at most one at a time: the library reads prompts in their order, so one behind another
#   unread prompt has not begun. Whether a beam search has read its prompt is unknown until its end.
# - Seen: tests/engine/test_partial_prefill.py. Versions: OpenVINO GenAI 2026.4.1.
# - It can go when the library names a block by what has been computed.


_RUNNING = ov_genai.GenerationStatus.RUNNING


def may_be_partly_computed(sequence: Sequence, admitted: Iterable[Sequence]) -> bool:
    """`admitted`: all requests in the library, in their order."""
    if not _awaits_first_token(sequence):
        return False
    first = (
        one for one in admitted if one is sequence or (one.sampling.beams == 1 and _awaits_first_token(one))
    )
    return next(first, None) is sequence


def _awaits_first_token(sequence: Sequence) -> bool:
    """Return whether a request has no token yet."""
    handle = sequence.handle
    return not sequence.generated and not handle.can_read() and handle.get_status() == _RUNNING


# Cache no prefixes of a model with linear attention.
#
# - What the library does: it keeps the state of a sequence under the tokens that it has computed, and a
#   prompt of just these takes it. To have logits, it computes the last token again, on a state that has it
#   already. So a prompt gets another answer after a request that ended with its first token, or was cancelled
#   there, and so does one that ends where an answer ended: of 9 lengths from 9 to 300 tokens 8, with the
#   layers of Qwen3-Next, Qwen3.5, Granite 4 and LFM2.
# - The way around: the prefix cache is off for such models, which the log says. Each sequence then has one
#   state; those of a bounded cache take half of it at most, and requests wait for one.
# - Seen: tests/engine/test_linear_attention.py. Versions: OpenVINO GenAI 2026.4.1.
# - It can go when the library takes a state only of tokens before the last one of a prompt.


UNCACHED = "no prefixes are cached: with linear attention, OpenVINO GenAI would answer some prompts wrongly"
MAX_STATES_SHARE = 0.5  # of a bounded cache
MAX_BEAMS = 20  # of a request; OVMS's default of best_of_limit


def most_states(spec: TextSpec, state_bytes: int) -> int:
    """Return for how many states a bounded cache has room; 0: any number, or the model has none."""
    if not state_bytes or not spec.cache_size:
        return 0
    room = int(spec.cache_size * BYTES_PER_GIB * MAX_STATES_SHARE)
    return max(1, min(max(spec.max_num_seqs, MAX_BEAMS), room // state_bytes))

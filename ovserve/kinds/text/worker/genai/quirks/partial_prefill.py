"""Have a prompt read to its first token before its request is cancelled, where prefixes are cached.

- What the library does: it names a block of the cache, when it allocates it, by all tokens that the block is
  to hold. A prompt that is cancelled between two of its steps leaves its last block in the cache under that
  name, with whatever the memory held in the rest. The next prompt with the same beginning takes it as
  computed, and the answer is wrong: 24 of 24 prompts that were cancelled and sent again (SmolLM2, 100 tokens
  per step).
- The way around: a cancelled request whose prompt may be half read stays in the library until it has a token.
  That is at most one at a time: the library reads prompts in their order, so one behind another unread prompt
  has not begun. Whether a beam search has read its prompt is unknown until its end.
- Seen: tests/engine/test_partial_prefill.py. Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library names a block by what has been computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino_genai as ov_genai

from ovserve.kinds.text.worker.decoding.sequence import Sequence

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

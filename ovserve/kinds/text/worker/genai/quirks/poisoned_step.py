"""Reject at admission what would raise inside a step.

- What the library does: an error in `step()` ends the step for every request in it, and the pipeline cannot
be
  used again. Causes are a grammar that does not compile, and a prompt that is longer than a step without
  split-fuse.
- Seen: tests/engine/test_engine_raising_in_step.py has the consequence: the process ends with its requests.
- Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library fails one request alone.

Whatever can raise there is rejected in `add()`: lengths by `protocol/admission.py`, options by `request.py`,
grammars by `grammar.py`.
"""

from __future__ import annotations

from ovserve.engine.protocol.specs import TextSpec


def prompt_limit(spec: TextSpec) -> int | None:
    """Return the most tokens of a prompt; None: no limit but the context."""
    # Without split-fuse a prompt goes through in one step or makes the step raise.
    return None if spec.dynamic_split_fuse else spec.max_num_batched_tokens

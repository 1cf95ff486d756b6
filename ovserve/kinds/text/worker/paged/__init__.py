"""Text generation by a step loop of our own over the runtime's paged attention: `engine: "paged"`.

A round of the loop:

- `scheduler.py` decides which tokens of which requests the next step computes, and gives them blocks of the
  KV cache (`blocks.py`), which also finds prompts that begin like earlier ones.
- `drafts.py` adds candidates that may follow, where that pays; `draft_model.py` has those of another model.
- `model.py` computes the step.
- `sampler.py` chooses tokens from the logits; `masks.py` forbids those that a grammar does not allow.
- `beams.py` chooses several continuations for a request with `best_of`; the scheduler forks block tables.

`engine.py` puts them together. Texts, stop conditions and facts are those of `genai/` and `decoding/`.
The library's pipeline cannot do what its step loop does not let out: other tokens' log-probabilities, biases,
drafts for one user only, and what the prefix cache had. Measurements: docs/performance.md, "The
paged engine".
"""

from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.kinds.text.worker.paged.engine import PagedEngine

__all__ = ["PagedEngine", "open_paged"]


def open_paged(spec: PagedTextSpec) -> PagedEngine:
    """Raises LoadError."""
    return PagedEngine(spec)

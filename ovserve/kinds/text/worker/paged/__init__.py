"""Text generation by a step loop of our own over the runtime's paged attention: `engine: "paged"`.

A round of the loop:

- `scheduler.py` schedules the tokens of the next step, and allocates blocks of the KV cache (`blocks.py`),
  which is also the prefix cache.
- `drafts.py` proposes n-gram drafts where they save time; `draft_model.py` has those of a draft model.
- `model.py` computes the step.
- `sampler.py` samples tokens from the logits; `masks.py` masks those that a grammar does not allow.
- `beams.py` chooses several continuations for a request with `best_of`; the scheduler forks block tables.

`engine.py` puts them together. Texts, stop conditions and facts are those of `genai/` and `decoding.py`.
The library's pipeline cannot do what its step loop does not expose: other tokens' log-probabilities, biases,
drafts for one user only, and the hits of the prefix cache. Measurements: docs/performance.md, "The
paged engine".
"""

from ovserve.kinds.text.worker.paged.engine import PagedEngine

__all__ = ["PagedEngine"]

"""Check whether a request fits before any engine sees it.

The library accepts prompts longer than the model's context and answers nonsense, and an
error inside a step fails every running request with it. So all of this is checked here.
"""

from __future__ import annotations

from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError
from ovserve.llm.decoding import Mode, refuse_combination
from ovserve.llm.request import Sampling


def context_limit(of_model: int | None, of_graph: int | None, room: int | None = None) -> int | None:
    """Return the context of a graph in tokens: the least of the model's, the graph's `max_model_len` and the
    cache's room, as far as they are known. Raises LoadError for more than the model's."""
    if of_model is not None and of_graph is not None and of_graph > of_model:
        raise LoadError(
            f"expected at most {of_model}, the model's context, got {of_graph}", field="max_model_len"
        )
    return min((tokens for tokens in (of_model, of_graph, room) if tokens is not None), default=None)


def admit(
    prompt_tokens: int,
    max_length: int | None,
    sampling: Sampling,
    prompt_limit: int | None = None,
    mode: Mode = "plain",
) -> int:
    """Return how many tokens may be generated at most; 0 when neither the request nor the model limits it.

    It is 1 of a request for none: engines compute one at least, which `Sequence` drops.
    """
    if prompt_tokens == 0:
        raise InvalidArgument("the prompt is empty: it has no tokens", param="prompt")
    if prompt_limit is not None and prompt_tokens > prompt_limit:
        why = "an NPU takes {} (MAX_PROMPT_LEN in plugin_config)"
        if mode != "stateful":
            why = "with dynamic_split_fuse off this graph takes {} (max_num_batched_tokens)"
        raise InvalidArgument(
            f"The prompt has {prompt_tokens} tokens; {why.format(prompt_limit)}.", param="prompt"
        )
    if mode == "eagle3" and prompt_tokens < 2:
        raise InvalidArgument(
            "The prompt has 1 token; an EAGLE3 draft begins with the second, so it needs 2.", param="prompt"
        )
    refuse_combination(mode, sampling)
    max_tokens = sampling.max_tokens
    if max_tokens is not None and max_tokens < 0:
        raise InvalidArgument(f"max_tokens must be at least 0, not {max_tokens}", param="max_tokens")
    if not all(sampling.stop):
        raise InvalidArgument("a stop string must not be empty", param="stop")
    whose, own = "This model's", sampling.max_context
    if own is not None and (max_length is None or own < max_length):
        whose, max_length = "This request's", own
    if max_length is None:
        return 0 if max_tokens is None else max(max_tokens, 1)
    if prompt_tokens >= max_length:
        over = prompt_tokens - max_length + 1
        raise ContextLengthExceeded(
            f"{whose} maximum context length is {max_length} tokens, and one of them must be left for "
            f"the answer. The prompt has {prompt_tokens} tokens: shorten it by at least {over}.",
            param="prompt",
        )
    room = max_length - prompt_tokens
    return room if max_tokens is None else min(max(max_tokens, 1), room)

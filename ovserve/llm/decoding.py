"""Decoding modes of an engine, and what each cannot do: the one place of these rules.

The graph sets the mode. Request parsing asks here which fields have an effect and what their defaults are;
admission (`engine/protocol/admission.py`) calls `refuse_combination`, so no API style can miss it. Each
refusal is a failure of the library that tests/engine shows: test_pair.py and test_eagle3.py for drafts,
test_genai_grammar.py for constraints, test_stateful.py for one request at a time. What only the paged engine
has is refused in all other modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling

Mode = Literal["plain", "paged", "stateful", "prompt_lookup", "draft", "eagle3"]

BEAMS: tuple[Mode, ...] = ("plain", "paged")  # modes that search beams

# The request fields of assisted decoding that a mode takes notice of.
ASSISTED_FIELDS = ("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size")
EFFECTIVE: dict[Mode, tuple[str, ...]] = {
    "plain": (),
    "paged": ("num_assistant_tokens",),
    "stateful": (),
    "prompt_lookup": ("num_assistant_tokens", "max_ngram_size"),
    "draft": ("num_assistant_tokens", "assistant_confidence_threshold"),
    "eagle3": ("num_assistant_tokens",),
}
DEFAULT_ASSISTANT_TOKENS = 5  # OVMS's, like the next one
DEFAULT_NGRAM_SIZE = 3
# A draft is made within a step, while all neighbours wait, and the library pads lookups to this length.
MAX_ASSISTANT_TOKENS = 64
MAX_NGRAM_SIZE = 64
MAX_TOP_LOGPROBS = 20
NO_BIAS = "the engine has no bias on single tokens, which the paged engine has"

_DRAFTS: tuple[Mode, ...] = ("draft", "eagle3")
_ASSISTED: tuple[Mode, ...] = ("prompt_lookup", *_DRAFTS)
_NAMES: dict[Mode, str] = {
    "plain": "plain decoding",
    "paged": 'the paged engine (engine: "paged")',
    "stateful": "the stateful pipeline (pipeline_type LM)",
    "prompt_lookup": "prompt lookup",
    "draft": "a draft model",
    "eagle3": "an EAGLE3 draft",
}


def default_temperature(mode: Mode, otherwise: float) -> float:
    """Return the temperature of a request that sets none; with a draft model only greedy is supported."""
    return GREEDY_TEMPERATURE if mode in _DRAFTS else otherwise


def assistance(
    mode: Mode, requested: Mapping[str, float | None], model: Mapping[str, float | None]
) -> dict[str, Any]:
    """The assisted-decoding fields of Sampling: the request's, else generation_config.json's.

    A request that sets one of num_assistant_tokens and assistant_confidence_threshold is done with the
    model's setting of the other. Raises InvalidArgument for a threshold where no draft model has confidence.
    """
    if mode == "paged":  # an explicit 0 is a wish here: no drafts
        tokens = requested.get("num_assistant_tokens")
        return {
            "num_assistant_tokens": model.get("num_assistant_tokens") or None if tokens is None else tokens
        }
    if mode not in _ASSISTED:
        return {}
    threshold = requested.get("assistant_confidence_threshold")
    if threshold and "assistant_confidence_threshold" not in EFFECTIVE[mode]:
        raise InvalidArgument(
            f"assistant_confidence_threshold: {threshold} has no meaning with {_NAMES[mode]}; see "
            "num_assistant_tokens",
            param="assistant_confidence_threshold",
        )
    limits = {name: requested.get(name) or 0 for name in EFFECTIVE[mode]}
    for name in limits:
        of_length = name != "max_ngram_size"
        if not limits[name] and not (of_length and (requested.get("num_assistant_tokens") or threshold)):
            limits[name] = model.get(name) or 0
    return limits


def filled(mode: Mode, sampling: Sampling) -> Sampling:
    """Add the mode's defaults for options that are not set, because the library requires all of them."""
    if mode not in _ASSISTED:
        return sampling
    tokens = sampling.num_assistant_tokens
    if not tokens and not sampling.assistant_confidence_threshold:
        tokens = DEFAULT_ASSISTANT_TOKENS
    ngram = sampling.max_ngram_size or DEFAULT_NGRAM_SIZE
    return msgspec.structs.replace(sampling, num_assistant_tokens=tokens, max_ngram_size=ngram)


def max_top_logprobs(mode: Mode) -> int:
    return MAX_TOP_LOGPROBS if mode == "paged" else 1


def refuse_token_options(
    mode: Mode, top: int, bias: Sequence[tuple[int, float]], top_name: str = "top_logprobs"
) -> None:
    """Raises UnsupportedParameter for what needs the logits of all tokens, which only the paged engine has.

    `top_name`: the request's field for `top_logprobs`.
    """
    if top > max_top_logprobs(mode):
        reason = f"expected at most {MAX_TOP_LOGPROBS}"
        if mode != "paged":
            least = "0 or 1" if top_name == "top_logprobs" else "at most 1"
            reason = f"the engine knows the chosen token only, so {least}"
        raise UnsupportedParameter(f"{top_name}: {reason}, got {top}", param=top_name)
    if mode != "paged" and bias:
        (id_, value), *more = bias
        example = f'"{id_}":{value:g}' + (",..." if more else "")
        raise UnsupportedParameter(
            f"logit_bias: {{{example}}} is not supported by this graph: {NO_BIAS}", param="logit_bias"
        )


def refuse_combination(mode: Mode, sampling: Sampling) -> None:
    """Raises InvalidArgument for what the engine cannot do in this mode. Sampled choices (n > 1) are requests
    of their own by now and pass."""
    if sampling.constraint is not None:
        _refuse_with_constraint(mode, sampling, sampling.constraint.param)
    refuse_token_options(mode, sampling.top_logprobs, sampling.logit_bias)
    if mode != "paged" or sampling.beams > 1:
        of = _NAMES[mode] if mode != "paged" else f"a beam search (best_of {sampling.beams})"
        if sampling.dry or sampling.xtc_probability:
            name = "dry_multiplier" if sampling.dry else "xtc_probability"
            raise UnsupportedParameter(f"{name}: not possible with {of}", param=name)
        if sampling.reasoning_budget is not None:
            raise UnsupportedParameter(f"a budget of reasoning is not possible with {of}", param="best_of")
    if mode == "plain":
        return
    if mode == "stateful":
        _refuse_stateful(sampling)
        return
    if mode != "paged":
        _refuse_assisted(mode, sampling)
    for name, limit in (("num_assistant_tokens", MAX_ASSISTANT_TOKENS), ("max_ngram_size", MAX_NGRAM_SIZE)):
        if (getattr(sampling, name) or 0) > limit:
            raise InvalidArgument(
                f"{name}: expected at most {limit}, got {getattr(sampling, name)}", param=name
            )


def _refuse_assisted(mode: Mode, sampling: Sampling) -> None:
    with_ = f"is not possible with {_NAMES[mode]}"
    if sampling.beams > 1:
        raise InvalidArgument(
            f"best_of: {sampling.beams} {with_}: drafted tokens are checked along one line of text, beams "
            "are many",
            param="best_of",
        )
    if sampling.min_tokens:
        raise InvalidArgument(
            f"min_tokens: {sampling.min_tokens} {with_}: the engine takes a drafted end token although the "
            "minimum is not reached",
            param="min_tokens",
        )
    if mode in _DRAFTS and sampling.temperature != GREEDY_TEMPERATURE:
        raise InvalidArgument(
            f"temperature: {sampling.temperature:g} {with_}: the engine then keeps drafted tokens the model "
            "itself would not choose. Only 0 (greedy) is offered, which is also the default here",
            param="temperature",
        )


def _refuse_stateful(sampling: Sampling) -> None:
    with_ = f"is not possible with {_NAMES['stateful']}"
    if sampling.beams > 1:
        raise InvalidArgument(
            f"best_of: {sampling.beams} {with_}: it searches beams in one piece, silent until the end and "
            "deaf to a client that leaves",
            param="best_of",
        )
    if sampling.logprobs:
        raise InvalidArgument(f"logprobs: true {with_}, which gives none", param="logprobs")
    if sampling.echo:
        raise InvalidArgument(f"echo: true {with_}, which has none", param="echo")


def _refuse_with_constraint(mode: Mode, sampling: Sampling, param: str) -> None:
    reason = ""
    if sampling.beams > 1:
        reason = f"the engine enforces no grammar in a beam search, got best_of {sampling.beams}"
    elif sampling.ignore_eos:
        reason = "with ignore_eos: true the engine writes on, unconstrained, past the grammar's end"
    elif sampling.min_tokens and mode != "paged":
        reason = f"with min_tokens {sampling.min_tokens} an answer could not end with its grammar"
    if reason:
        raise InvalidArgument(f"{param}: {reason}", param=param)

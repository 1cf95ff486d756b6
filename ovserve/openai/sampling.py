"""The sampling fields that chat, completions and responses share: types, ranges, mapping to `Sampling`.

Ranges are OVMS's (inclusive), null means absent everywhere, and a default comes from the request, then the
model's generation_config.json, then here.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling

MAX_STOP = 16
MAX_CHOICES = 128
SEED_RANGE = (-(2**63), 2**64 - 1)  # OpenAI's is a signed 64-bit integer, the engine's an unsigned one
DEFAULT_TOP_K = 40  # OVMS's, when sampling and neither request nor model says otherwise

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """Mixed into the request struct of each endpoint."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1000)] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOP)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    length_penalty: Annotated[float, Meta(ge=-1000, le=1000)] | None = None
    diversity_penalty: Annotated[float, Meta(ge=-1000, le=1000)] | None = None
    num_beam_groups: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    num_assistant_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    assistant_confidence_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_ngram_size: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stream: bool | None = None


ASSISTED = ("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size")

# Fields we know and cannot honour, each with the values that ask for nothing and are therefore fine.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}


def check_sampling(fields: SamplingFields) -> None:
    """What types and single ranges cannot say. Raises InvalidArgument."""
    if fields.top_k == 0:
        raise InvalidArgument("top_k: expected -1 (all) or at least 1, got 0", param="top_k")
    low, high = SEED_RANGE
    if fields.seed is not None and not low <= fields.seed <= high:
        raise InvalidArgument(f"seed: expected {low} to {high}, got {fields.seed}", param="seed")
    for i, text in enumerate(_stop_list(fields.stop)):
        if not text:
            where = f"stop[{i}]" if isinstance(fields.stop, list) else "stop"
            raise InvalidArgument(f'{where}: expected a non-empty string, got ""', param="stop")
    if fields.num_assistant_tokens and fields.assistant_confidence_threshold:
        raise InvalidArgument(
            f"num_assistant_tokens: {fields.num_assistant_tokens} and assistant_confidence_threshold: "
            f"{fields.assistant_confidence_threshold} exclude each other",
            param="num_assistant_tokens",
        )
    _check_beams(fields)


def _check_beams(fields: SamplingFields) -> None:
    n, beams, groups = fields.n or 1, fields.best_of or 1, fields.num_beam_groups or 1
    if fields.best_of is not None and n > beams:
        raise InvalidArgument(f"n: {n} is more than best_of {beams}", param="n")
    if beams > 1 and fields.stream:
        raise InvalidArgument(
            f"best_of: {beams} searches beams, which have no text until the end; not with stream: true",
            param="best_of",
        )
    if beams % groups:
        raise InvalidArgument(
            f"num_beam_groups: {groups} does not divide best_of {beams}", param="num_beam_groups"
        )
    if fields.diversity_penalty and groups == 1:
        raise InvalidArgument(
            f"diversity_penalty: {fields.diversity_penalty} needs num_beam_groups above 1",
            param="diversity_penalty",
        )


def unused_assistance(fields: SamplingFields) -> list[str]:
    """Assisted decoding fields that this server's plain pipelines take no notice of; to be reported."""
    return [name for name in ASSISTED if getattr(fields, name) is not None]


def to_sampling(
    fields: SamplingFields,
    model: ModelContext,
    max_tokens: int | None,
    *,
    logprobs: bool = False,
    echo: bool = False,
) -> Sampling:
    """The engine's sampling. Without a seed each request gets a random one."""

    def pick(name: str, fallback: Any) -> Any:
        value = getattr(fields, name)
        return model.default(name, fallback) if value is None else value

    if fields.best_of is not None and fields.best_of > model.best_of_limit:
        raise InvalidArgument(
            f"best_of: {fields.best_of} is above best_of_limit {model.best_of_limit} of this graph",
            param="best_of",
        )
    minimum = fields.min_tokens or 0
    if max_tokens is not None and minimum > max_tokens:
        raise InvalidArgument(
            f"min_tokens: {minimum} is more than max_tokens {max_tokens}", param="min_tokens"
        )
    temperature = float(pick("temperature", 1.0))
    top_k = pick("top_k", DEFAULT_TOP_K if temperature != GREEDY_TEMPERATURE else None)
    seed = fields.seed if fields.seed is not None else secrets.randbits(32)
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=minimum,
        temperature=temperature,
        top_p=float(pick("top_p", 1.0)),
        top_k=None if top_k is None or top_k <= 0 else int(top_k),
        min_p=float(pick("min_p", 0.0)),
        repetition_penalty=float(pick("repetition_penalty", 1.0)),
        frequency_penalty=float(pick("frequency_penalty", 0.0)),
        presence_penalty=float(pick("presence_penalty", 0.0)),
        seed=seed % 2**64,
        ignore_eos=bool(pick("ignore_eos", False)),
        stop=tuple(dict.fromkeys(_stop_list(fields.stop))) or tuple(model.default("stop_strings", ())),
        include_stop=bool(fields.include_stop_str_in_output),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        skip_special_tokens=fields.skip_special_tokens is not False,
        n=fields.n or 1,
        beams=fields.best_of or 1,
        beam_groups=fields.num_beam_groups or 1,
        length_penalty=float(pick("length_penalty", 1.0)),
        diversity_penalty=fields.diversity_penalty or 0.0,
        logprobs=logprobs,
        echo=echo,
    )


def _stop_list(stop: str | list[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else stop

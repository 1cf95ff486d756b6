"""The sampling fields that chat, completions and responses share: types, ranges, mapping to `Sampling`.

Ranges are OVMS's (inclusive), null means absent everywhere, and a default comes from the request, then the
model's generation_config.json, then here.

`logit_bias` is OpenAI's object from token ids, as strings, to what is added to their logits.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ovserve.api.openai.operation import (
    IGNORED,
    REJECTED,
    Count,
    Natural,
    NaturalOrMinusOne,
    Override,
    Refused,
    Share,
    Temperature,
    doc,
)
from ovserve.api.openai.structured import FIELDS, AnswerFormat, Choices, StructuredOutputs, read_constraint
from ovserve.errors import InvalidArgument
from ovserve.llm.decoding import (
    ASSISTED_FIELDS,
    BEAMS,
    EFFECTIVE,
    MAX_ASSISTANT_TOKENS,
    MAX_NGRAM_SIZE,
    NO_BIAS,
    assistance,
    default_temperature,
    max_top_logprobs,
    refuse_token_options,
)
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GREEDY_TEMPERATURE, Dry, ReasoningBudget, Sampling

MAX_BIASES = 1_024
MAX_BIAS = 100

# `$` alone would also match before a newline at the end, and two keys would be one id.
TokenKey = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,8})(?!\n)$")]
LogitBias = Annotated[
    dict[TokenKey, Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]], Meta(max_length=MAX_BIASES)
]


def biases(bias: LogitBias | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Return the pairs, sorted by id. `vocab_size` 0: unknown. Raises InvalidArgument."""
    if not bias:
        return ()
    pairs = tuple(sorted((int(key), value) for key, value in bias.items()))
    _check_ids([pairs[-1][0]], vocab_size, "logit_bias")
    return pairs


def _check_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    last = max(ids, default=0)
    if vocab_size and last >= vocab_size:
        raise InvalidArgument.at(field, f"token id {last} is not in the vocabulary of {vocab_size}")


MAX_TOKENS = (
    "clamped to the room left in the context, which x-ovserve-clamped reports; above max_tokens_limit: 400"
)
MAX_STOP = 64  # role-play clients send the names of all speakers
MAX_CHOICES = 128
SEED_RANGE = (-(2**63), 2**64 - 1)  # OpenAI's is a signed 64-bit integer, the engine's an unsigned one
NO_SAMPLER = "only the paged engine has this sampler"
NO_DRAFT = "checked; no effect, because this graph does not draft tokens that way"

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Breaker = Annotated[str, Meta(min_length=1, max_length=64)]
DRY = tuple(f"dry_{name}" for name in Dry.__struct_fields__)
XTC = ("xtc_probability", "xtc_threshold")
TokenId = Natural
Width = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]  # of the choices, or of a beam search
BeamPenalty = Annotated[float, Meta(ge=-1000, le=1000)]


# The ends of the APIs' ranges, which OpenVINO GenAI refuses: both leave the likeliest token alone.
LEAST_TOP_P = 1e-9
MOST_MIN_P = 0.999999


class SamplingFields(msgspec.Struct, kw_only=True, dict=True):
    """Mixed into the request struct of each endpoint."""

    response_format: Annotated[
        dict[str, Any] | None,
        doc(
            "type text, json_object, json_schema, structural_tag, regex, grammar, or another format of "
            "XGrammar; enforced, and 400 if it does not compile"
        ),
    ] = None
    structured_outputs: Annotated[StructuredOutputs | None, doc("vLLM's name for the same")] = None
    guided_json: Annotated[
        str | dict[str, Any] | None, doc("vLLM's older spelling of structured_outputs.json")
    ] = None
    guided_regex: Annotated[str | None, doc("the same of structured_outputs.regex")] = None
    guided_choice: Annotated[Choices | None, doc("the same of structured_outputs.choice")] = None
    guided_grammar: Annotated[str | None, doc("the same of structured_outputs.grammar")] = None
    json_schema: Annotated[
        str | dict[str, Any] | None, doc("SGLang's and llama.cpp's name of structured_outputs.json")
    ] = None
    regex: Annotated[str | None, doc("SGLang's name of structured_outputs.regex")] = None
    ebnf: Annotated[str | None, doc("SGLang's name of structured_outputs.grammar")] = None
    grammar: Annotated[str | None, doc("llama.cpp's name of structured_outputs.grammar; empty: none")] = None
    temperature: Annotated[Temperature | None, doc("0 is greedy; above it tokens are drawn")] = None
    top_p: Annotated[
        Share | None, doc("draws from the likeliest tokens of this mass; 0: takes the likeliest")
    ] = None
    top_k: Annotated[NaturalOrMinusOne | None, doc("draws from so many tokens; 0 or -1: all")] = None
    min_p: Annotated[Share | None, doc("drops tokens below this share of the likeliest one")] = None
    frequency_penalty: Annotated[
        Penalty | None, doc("per occurrence in the answer; excludes best_of > 1")
    ] = None
    presence_penalty: Annotated[Penalty | None, doc("once for what the answer has; excludes best_of > 1")] = (
        None
    )
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=1000)] | None,
        doc("for what prompt or answer has; above 1 discourages; excludes best_of > 1"),
    ] = None
    dry_multiplier: Annotated[
        Annotated[float, Meta(ge=0, le=1000)] | None,
        doc("DRY: of the penalty for tokens that go on with a repetition; 0: none; excludes best_of > 1"),
    ] = None
    dry_base: Annotated[
        Annotated[float, Meta(ge=1, le=1000)] | None,
        doc("DRY: factor of the penalty per further token of the repetition"),
    ] = None
    dry_allowed_length: Annotated[
        Count | None, doc("DRY: tokens of a repetition from which on the next is penalized")
    ] = None
    dry_penalty_last_n: Annotated[
        NaturalOrMinusOne | None, doc("DRY: tokens of prompt and answer that are searched; -1: all; 0: none")
    ] = None
    dry_sequence_breakers: Annotated[
        Annotated[list[Breaker], Meta(max_length=64)] | None,
        doc("DRY: texts that no repetition goes on over"),
    ] = None
    xtc_probability: Annotated[
        Share | None,
        doc(
            "XTC: how often the likely tokens but the least likely of them are left out; excludes best_of > 1"
        ),
    ] = None
    xtc_threshold: Annotated[
        Share | None,
        doc("XTC: probability from which on a token is a likely one; above 0.5 there is never a second"),
    ] = None
    seed: Annotated[
        int | None,
        doc("the same gives the same answer", minimum=SEED_RANGE[0], maximum=SEED_RANGE[1]),
    ] = None
    stop: Annotated[
        str | Annotated[list[str], Meta(max_length=MAX_STOP)] | None,
        doc("strings that end the answer and are cut from it"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=256)] | None, doc("tokens that end the answer")
    ] = None
    include_stop_str_in_output: Annotated[bool | None, doc("keep the stop string")] = None
    skip_special_tokens: Annotated[
        bool | None, doc("false shows the vocabulary's special tokens, such as the end of turn")
    ] = None
    ignore_eos: Annotated[bool | None, doc("do not end at the end-of-text token, nor for repetition")] = None
    min_tokens: Annotated[Natural | None, doc("no end before so many tokens")] = None
    n: Annotated[Width | None, doc("choices in the answer; at most best_of")] = None
    best_of: Annotated[Width | None, doc("above 1 the width of a beam search, which excludes streaming")] = (
        None
    )
    length_penalty: Annotated[BeamPenalty | None, doc("beam search: above 0 favours long answers")] = None
    diversity_penalty: Annotated[BeamPenalty | None, doc("beam search: for tokens of other groups")] = None
    num_beam_groups: Annotated[Width | None, doc("beam search: must divide best_of")] = None
    logit_bias: Annotated[
        LogitBias | None,
        doc(f"paged engine only: up to {MAX_BIASES} token ids, as strings, to what is added to their logits"),
    ] = None
    num_assistant_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_ASSISTANT_TOKENS)] | None,
        doc("tokens drafted per step; 0: the default, of the paged engine none"),
    ] = None
    assistant_confidence_threshold: Annotated[
        Share | None,
        doc(
            "a draft model drafts until it is less sure than this; excludes num_assistant_tokens and prompt "
            "lookup; ignored without a draft model"
        ),
    ] = None
    max_ngram_size: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_NGRAM_SIZE)] | None,
        doc("longest run of tokens that prompt lookup searches for; 0: the default"),
    ] = None
    stream: Annotated[bool | None, doc("server-sent events as the text comes")] = None

    @property
    def formats(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Return the fields for a format in OpenAI's form, and their values."""
        return [("response_format", self.response_format)]

    @cached_property
    def answer_format(self) -> AnswerFormat:
        """Raises InvalidArgument naming field and value."""
        values = {name: getattr(self, name) for name in FIELDS}
        return read_constraint(self.formats, self.structured_outputs, values)


# What absence means where neither the request nor the model's generation_config.json says anything.
DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 40,  # OVMS's, when sampling
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": False,
    "length_penalty": 1.0,
}
# The same for those the model has no say in.
FIXED_DEFAULTS: dict[str, Any] = {
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": list(Dry(1).sequence_breakers),
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "diversity_penalty": 0.0,
    "num_beam_groups": 1,
    "n": 1,
    "best_of": 1,
    "min_tokens": 0,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "stream": False,
}

# Known fields that are not supported.
UNSUPPORTED = {"use_beam_search": Refused("best_of above 1 asks for beam search", (False,))}


def narrow_sampling(model: ModelContext) -> dict[str, Override]:
    """Return what the model's generation_config.json and the graph's limits change in these fields."""
    narrowed = {name: Override(default=model.defaults.get(name, ours)) for name, ours in DEFAULTS.items()}
    beams, top = model.decoding in BEAMS, max_top_logprobs(model.decoding)
    narrowed["best_of"] = Override(maximum=model.best_of_limit if beams else 1)
    narrowed["temperature"] = Override(default=_default_temperature(model))
    narrowed["top_logprobs"] = Override(maximum=top)
    if model.decoding != "paged":
        narrowed["logit_bias"] = Override(status=REJECTED, why=NO_BIAS)
        narrowed |= dict.fromkeys((*DRY, *XTC), Override(status=IGNORED, why=NO_SAMPLER))
    for name in ASSISTED_FIELDS:
        has_effect = name in EFFECTIVE[model.decoding]
        narrowed[name] = Override() if has_effect else Override(status=IGNORED, why=NO_DRAFT)
    if stops := model.defaults.get("stop_strings"):
        narrowed["stop"] = Override(default=list(stops))
    return narrowed


def narrow_length(model: ModelContext, *names: str) -> dict[str, Override]:
    """The same for the fields that bound the answer's length."""
    change = Override(maximum=model.max_tokens_limit, default=model.max_tokens(None, names[0]))
    return dict.fromkeys(names, change)


def check_sampling(fields: SamplingFields) -> None:
    """Check what types and single ranges cannot express. Raises InvalidArgument."""
    low, high = SEED_RANGE
    if fields.seed is not None and not low <= fields.seed <= high:
        raise InvalidArgument.at("seed", f"expected {low} to {high}, got {fields.seed}")
    for i, text in enumerate(_stop_list(fields.stop)):
        if not text:
            where = f"stop[{i}]" if isinstance(fields.stop, list) else "stop"
            raise InvalidArgument(f'{where}: expected a non-empty string, got ""', param="stop")
    if fields.num_assistant_tokens and fields.assistant_confidence_threshold:
        raise InvalidArgument.at(
            "num_assistant_tokens",
            f"{fields.num_assistant_tokens} and assistant_confidence_threshold: "
            f"{fields.assistant_confidence_threshold} exclude each other",
        )
    _check_beams(fields)


def _check_beams(fields: SamplingFields) -> None:
    n, beams, groups = fields.n or 1, fields.best_of or 1, fields.num_beam_groups or 1
    if fields.best_of is not None and n > beams:
        raise InvalidArgument.at("n", f"{n} is more than best_of {beams}")
    if beams > 1 and fields.stream:
        raise InvalidArgument.at(
            "best_of", f"{beams} searches beams, which have no text until the end; not with stream: true"
        )
    if beams % groups:
        raise InvalidArgument.at("num_beam_groups", f"{groups} does not divide best_of {beams}")
    if fields.diversity_penalty and groups == 1 and fields.best_of is None:
        raise InvalidArgument.at(
            "diversity_penalty", f"{fields.diversity_penalty} needs best_of and num_beam_groups above 1"
        )


def idle_fields(fields: SamplingFields, model: ModelContext) -> list[str]:
    """Return the fields of assisted decoding that this graph's way of decoding ignores, and penalties of a
    beam search, or between groups of beams, where there is none."""
    effective = EFFECTIVE[model.decoding]
    unused = [name for name in ASSISTED_FIELDS if name not in effective and getattr(fields, name) is not None]
    unused += _idle_samplers(fields, model)
    if fields.length_penalty not in (None, DEFAULTS["length_penalty"]) and (fields.best_of or 1) < 2:
        unused.append("length_penalty")
    return unused + (["diversity_penalty"] if fields.diversity_penalty and not _grouped(fields) else [])


def _idle_samplers(fields: SamplingFields, model: ModelContext) -> list[str]:
    """Return the fields of DRY and XTC if the engine has none, and those of one that is off."""
    paged = model.decoding == "paged"
    dry = paged and bool(fields.dry_multiplier) and fields.dry_penalty_last_n != 0
    draws = (_default_temperature(model) if fields.temperature is None else fields.temperature) > 0
    xtc = paged and bool(fields.xtc_probability) and draws
    idle = (*(() if dry else DRY), *(() if xtc else XTC))
    # A 0 asks for none, and gets that.
    return [name for name in idle if getattr(fields, name) not in (None, 0)]


def _dry(fields: SamplingFields, model: ModelContext) -> Dry | None:
    if not fields.dry_multiplier or fields.dry_penalty_last_n == 0 or model.decoding != "paged":
        return None
    values = {name: getattr(fields, f"dry_{name}") for name in Dry.__struct_fields__}
    return msgspec.convert({name: value for name, value in values.items() if value is not None}, Dry)


def _grouped(fields: SamplingFields) -> bool:
    return (fields.num_beam_groups or 1) > 1


def _default_temperature(model: ModelContext) -> float:
    return default_temperature(
        model.decoding, float(model.defaults.get("temperature", DEFAULTS["temperature"]))
    )


def to_sampling(
    fields: SamplingFields,
    model: ModelContext,
    max_tokens: int | None,
    *,
    logprobs: bool = False,
    top_logprobs: int | None = None,
    top_name: str = "top_logprobs",
    echo: bool = False,
    reasoning_budget: ReasoningBudget | None = None,
    max_context: int | None = None,
) -> Sampling:
    """The engine's sampling. Without a seed each request gets a random one. `top_name`: the request's field
    for `top_logprobs`."""
    if fields.best_of is not None and fields.best_of > model.best_of_limit:
        raise InvalidArgument.at(
            "best_of", f"{fields.best_of} is above best_of_limit {model.best_of_limit} of this graph"
        )
    minimum = fields.min_tokens or 0
    if max_tokens is not None and minimum > max_tokens:
        raise InvalidArgument.at("min_tokens", f"{minimum} is more than max_tokens {max_tokens}")
    temperature = _default_temperature(model) if fields.temperature is None else float(fields.temperature)
    assisted = {name: getattr(fields, name) for name in ASSISTED_FIELDS}
    values = {**DEFAULTS, **model.defaults}
    if temperature == GREEDY_TEMPERATURE:
        values["top_k"] = model.defaults.get("top_k")
    values |= {name: value for name in DEFAULTS if (value := getattr(fields, name)) is not None}
    top_k = values["top_k"]
    seed = fields.seed if fields.seed is not None else secrets.randbits(32)
    endless = bool(values["ignore_eos"])
    bias = biases(fields.logit_bias, model.vocab_size)
    _check_ids(fields.stop_token_ids or (), model.vocab_size, "stop_token_ids")
    refuse_token_options(model.decoding, top_logprobs or 0, bias, top_name)
    return Sampling(
        max_tokens=max_tokens,
        max_context=max_context,
        min_tokens=minimum,
        temperature=temperature,
        top_p=max(float(values["top_p"]), LEAST_TOP_P),
        top_k=None if top_k is None or top_k <= 0 else int(top_k),
        min_p=min(float(values["min_p"]), MOST_MIN_P),
        repetition_penalty=float(values["repetition_penalty"]),
        frequency_penalty=float(values["frequency_penalty"]),
        presence_penalty=float(values["presence_penalty"]),
        dry=_dry(fields, model),
        xtc_probability=(fields.xtc_probability or 0.0) if model.decoding == "paged" else 0.0,
        xtc_threshold=FIXED_DEFAULTS["xtc_threshold"]
        if fields.xtc_threshold is None
        else fields.xtc_threshold,
        seed=seed % 2**64,
        ignore_eos=endless,
        # Who asks for a length gets it.
        repetition_detection=model.repetition_detection and not (endless or minimum),
        stop=tuple(dict.fromkeys(_stop_list(fields.stop))) or tuple(model.defaults.get("stop_strings", ())),
        include_stop=bool(fields.include_stop_str_in_output),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        skip_special_tokens=fields.skip_special_tokens is not False,
        n=fields.n or 1,
        beams=fields.best_of or 1,
        beam_groups=fields.num_beam_groups or 1,
        length_penalty=float(values["length_penalty"]),
        diversity_penalty=(fields.diversity_penalty or 0.0) if _grouped(fields) else 0.0,
        logprobs=logprobs,
        top_logprobs=top_logprobs or 0 if logprobs else 0,
        logit_bias=bias,
        echo=echo,
        reasoning_budget=reasoning_budget,
        constraint=fields.answer_format.constraint,
        **assistance(model.decoding, assisted, model.defaults),
    )


def _stop_list(stop: str | list[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else stop


class StreamOptions(msgspec.Struct):
    include_usage: Annotated[bool | None, doc("one more chunk at the end: no choices, usage")] = None
    continuous_usage_stats: Annotated[bool | None, doc("usage on every chunk, as vLLM does")] = None


class StreamFields(SamplingFields, kw_only=True):
    """Sampling fields plus stream_options."""

    stream_options: Annotated[StreamOptions | None, doc("only with stream: true")] = None

    @property
    def include_usage(self) -> bool:
        options = self.stream_options
        return bool(options and (options.include_usage or options.continuous_usage_stats))

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


def check_stream_options(fields: StreamFields) -> None:
    """Raises InvalidArgument."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidArgument.at("stream_options", "only allowed with stream: true")

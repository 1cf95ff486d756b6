"""A request's Sampling as the library's GenerationConfig."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import openvino_genai as ov_genai

from ovserve.engine.protocol.specs import TextFacts
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.worker.genai.options import sentence
from ovserve.llm.decoding import EFFECTIVE, Mode
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling

FINISH = {
    ov_genai.GenerationFinishReason.NONE: None,
    ov_genai.GenerationFinishReason.LENGTH: "length",
    ov_genai.GenerationFinishReason.STOP: "stop",
}

Admitted = Callable[[Constraint], ov_genai.StructuredOutputConfig]


def generation_config(
    mode: Mode,
    sampling: Sampling,
    max_tokens: int,
    stop_ids: Iterable[int],
    facts: TextFacts,
    admitted: Admitted,
) -> ov_genai.GenerationConfig:
    """`max_tokens` 0: no bound. Raises InvalidArgument for what the library would raise on inside a step."""
    config = ov_genai.GenerationConfig()
    options: dict[str, object] = {
        "apply_chat_template": False,
        "eos_token_id": facts.eos_token_ids[0] if facts.eos_token_ids else -1,
        "stop_token_ids": {*stop_ids, *facts.eos_token_ids},  # validate() wants the eos ids in it
        "ignore_eos": sampling.ignore_eos,
        "min_new_tokens": sampling.min_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "echo": sampling.echo,
        "logprobs": int(sampling.logprobs),
    }
    # The library's own defaults, 0, mean "not at all" to a pipeline that always drafts.
    for name in EFFECTIVE[mode]:
        if value := getattr(sampling, name):
            options[name] = value
    if sampling.constraint is not None:
        options["structured_output_config"] = admitted(sampling.constraint)
    if max_tokens:
        options["max_new_tokens"] = max_tokens
    if sampling.beams > 1:
        options |= {
            "num_beams": sampling.beams,
            "num_beam_groups": sampling.beam_groups,
            "num_return_sequences": sampling.n,
            "length_penalty": sampling.length_penalty,
            "diversity_penalty": sampling.diversity_penalty,
        }
    elif sampling.temperature != GREEDY_TEMPERATURE:
        options |= {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "rng_seed": sampling.seed,
        }
        if sampling.top_k is not None:
            options["top_k"] = sampling.top_k
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidArgument(f"{name} must be a finite number, not {value}", param=name)
        try:
            setattr(config, name, value)
        except (TypeError, OverflowError) as error:
            raise InvalidArgument(f"{name}: {value!r} is not a possible value", param=name) from error
    try:
        config.validate()
    except RuntimeError as error:
        raise InvalidArgument(sentence(error)) from error
    return config

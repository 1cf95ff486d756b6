"""The sampling fields that chat and completions share: types, ranges, and their mapping to `Sampling`.

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
from ovserve.llm.request import Sampling

MAX_STOP = 16
SEED_RANGE = (-(2**63), 2**64 - 1)  # OpenAI's is a signed 64-bit integer, the engine's an unsigned one

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Mixed into the request struct of each endpoint."""

    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1000)] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOP)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


# Fields we know and cannot honour, each with the values that ask for nothing and are therefore fine.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "length_penalty": (1, 1.0),
    "diversity_penalty": (0, 0.0),
    "num_beam_groups": (1,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "stop_token_ids": ([],),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "num_assistant_tokens": (),
    "assistant_confidence_threshold": (),
    "max_ngram_size": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}


def check_sampling(fields: SamplingFields) -> None:
    """What types and single ranges cannot say. Raises InvalidArgument."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidArgument("stream_options: only allowed with stream: true", param="stream_options")
    if fields.top_k == 0:
        raise InvalidArgument("top_k: expected -1 (all) or at least 1, got 0", param="top_k")
    low, high = SEED_RANGE
    if fields.seed is not None and not low <= fields.seed <= high:
        raise InvalidArgument(f"seed: expected {low} to {high}, got {fields.seed}", param="seed")
    for i, text in enumerate(_stop_list(fields.stop)):
        if not text:
            where = f"stop[{i}]" if isinstance(fields.stop, list) else "stop"
            raise InvalidArgument(f'{where}: expected a non-empty string, got ""', param="stop")


def to_sampling(fields: SamplingFields, model: ModelContext, max_tokens: int | None) -> Sampling:
    """The engine's sampling. Without a seed each request gets a random one."""

    def pick(name: str, fallback: Any) -> Any:
        value = getattr(fields, name)
        return model.default(name, fallback) if value is None else value

    top_k = pick("top_k", None)
    seed = fields.seed if fields.seed is not None else secrets.randbits(32)
    return Sampling(
        max_tokens=max_tokens,
        temperature=float(pick("temperature", 1.0)),
        top_p=float(pick("top_p", 1.0)),
        top_k=None if top_k is None or top_k <= 0 else int(top_k),
        min_p=float(pick("min_p", 0.0)),
        repetition_penalty=float(pick("repetition_penalty", 1.0)),
        frequency_penalty=float(pick("frequency_penalty", 0.0)),
        presence_penalty=float(pick("presence_penalty", 0.0)),
        seed=seed % 2**64,
        ignore_eos=bool(pick("ignore_eos", False)),
        stop=tuple(dict.fromkeys(_stop_list(fields.stop))) or tuple(model.default("stop_strings", ())),
    )


def _stop_list(stop: str | list[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else stop

"""The choices worth trying: values of a graph's options, and the features each would cost.

An option is a field of LLMCalculatorOptions; names in capitals, and prompt_lookup, are properties in its
plugin_config. What a processor cannot do fast is left out (docs/performance.md has the measurements); what
merely turns out slow costs two rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ovserve.engine.host.cpu import Processor
from ovserve.engine.protocol.specs import TextSpec

Value = str | int | bool
Options = Mapping[str, Value]

PROMPT_LOOKUP = "prompt_lookup"
BATCHED_TOKENS = (256, 512, 1024, 2048, 4096)
DIMENSIONS = (
    "weights",
    "precision",
    "threads",
    "kv_cache",
    "dynamic_quantization",
    "hyper_threading",
    "pinning",
    "streams",
    "batched_tokens",
    "split_fuse",
    "prompt_lookup",
)
LONGEST_WHOLE_PROMPT = 16384  # tokens; a longer step would delay all other requests for seconds
_SPEC_FIELD = {"models_path": "model_path"}


@dataclass(frozen=True)
class Choice:
    """Options that are set together. `price`: what requests lose by it, which needs permission."""

    options: Options
    price: str = ""

    @property
    def label(self) -> str:
        return label(self.options)


@dataclass(frozen=True)
class Dimension:
    """Choices of which only one can win."""

    name: str
    choices: tuple[Choice, ...] = field(default_factory=tuple)


def label(options: Options) -> str:
    short_options = {k: Path(str(v)).name if k == "models_path" else v for k, v in options.items()}
    return ", ".join(f"{k}={_display(v)}" for k, v in short_options.items()) or "the graph as it is"


def is_property(name: str) -> bool:
    """Return whether it is in plugin_config, and not a field of its own."""
    return name.isupper() or name == PROMPT_LOOKUP


def applied(spec: TextSpec, options: Options) -> TextSpec:
    """Return the engine of a graph with these options in place of its own."""
    properties: dict[str, Value] = json.loads(spec.properties)
    changed: dict[str, object] = {}
    for name, value in options.items():
        if name.isupper():
            properties[name] = value
        else:
            changed[_SPEC_FIELD.get(name, name)] = value
    return msgspec.structs.replace(spec, properties=json.dumps(properties, sort_keys=True), **changed)


def dimensions(
    spec: TextSpec,
    processor: Processor,
    *,
    context: int | None,
    weights: Sequence[str] = (),
    may_look_up: bool = True,
    only: Sequence[str] = (),
) -> list[Dimension]:
    """Return the dimensions with a choice that differs from the graph's; the most promising first.

    `context` is the model's length in tokens, `weights` are paths of the same model in other forms. With
    `may_look_up` false the graph has options that exclude prompt lookup. `only`: names of dimensions, none
    for all.
    """
    every = [
        Dimension("weights", tuple(Choice({"models_path": path}) for path in weights)),
        *(_of_cpu(processor) if spec.device.startswith("CPU") else _of_others()),
        Dimension("batched_tokens", _each("max_num_batched_tokens", BATCHED_TOKENS)),
    ]
    if spec.decoding != "paged":
        every.append(Dimension("split_fuse", tuple(_whole_prompts(spec, context))))
    if may_look_up and spec.decoding == "plain":
        price = "beam search, min_tokens"
        every.append(Dimension("prompt_lookup", (Choice({PROMPT_LOOKUP: True}, price),)))
    every = [d for d in every if not only or d.name in only]
    own = [Dimension(d.name, tuple(c for c in d.choices if applied(spec, c.options) != spec)) for d in every]
    return [d for d in own if d.choices]


def _of_cpu(processor: Processor) -> Iterator[Dimension]:
    flags, cores, logical = processor.flags, processor.cores, processor.logical
    half = ["bf16"] if flags & {"amx_bf16", "avx512_bf16"} else []
    fp16 = ["f16"] if flags & {"amx_fp16", "avx512_fp16"} else []
    yield Dimension("precision", _each("INFERENCE_PRECISION_HINT", ["f32", *half, *fp16]))
    threads = sorted({cores, logical, max(1, cores - 1), max(1, cores // 2)}, reverse=True)
    yield Dimension("threads", _each("INFERENCE_NUM_THREADS", threads))
    yield Dimension("kv_cache", _each("KV_CACHE_PRECISION", ["u8", *(half or ["f32"]), "f16", "u4"]))
    yield Dimension("dynamic_quantization", _each("DYNAMIC_QUANTIZATION_GROUP_SIZE", [0, 32, 64, 128]))
    if logical > cores:
        yield Dimension("hyper_threading", _each("ENABLE_HYPER_THREADING", [True, False]))
    if cores > 2:
        yield Dimension("pinning", _each("ENABLE_CPU_PINNING", [True, False]))
    if cores > 1:
        yield Dimension("streams", _each("NUM_STREAMS", ["1", "2"]))


def _of_others() -> Iterator[Dimension]:
    yield Dimension("precision", _each("INFERENCE_PRECISION_HINT", ["f16", "f32"]))
    yield Dimension("kv_cache", _each("KV_CACHE_PRECISION", ["i8", "u8", "f16"]))


def _whole_prompts(spec: TextSpec, context: int | None) -> Iterator[Choice]:
    """Yield choices without split-fuse, where a prompt takes one step: sensible only if the longest one
    does."""
    if context is not None and max(context, spec.max_num_seqs) <= LONGEST_WHOLE_PROMPT:
        tokens = max(context, spec.max_num_seqs, spec.max_num_batched_tokens)
        yield Choice({"dynamic_split_fuse": False, "max_num_batched_tokens": tokens})


def _each(name: str, values: Sequence[Value]) -> tuple[Choice, ...]:
    return tuple(Choice({name: value}) for value in values)


def _display(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

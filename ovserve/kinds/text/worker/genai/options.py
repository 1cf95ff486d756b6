"""A TextSpec as the library's own configuration objects.

Whatever the library says no to becomes a LoadError that names the option of the graph.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openvino_genai as ov_genai

from ovserve.engine.host.cpu import device_properties
from ovserve.engine.model.lora import compressed, unusable
from ovserve.engine.protocol.specs import (
    CacheEviction,
    DraftSpec,
    GenerationSpec,
    LoraAdapter,
    PagedTextSpec,
    SparseAttention,
    TextFacts,
    TextSpec,
)
from ovserve.errors import InvalidArgument, LoadError, sentences_of
from ovserve.llm.decoding import EFFECTIVE, Mode
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling
from ovserve.scratch import scratch_directory


def scheduler_config(spec: TextSpec) -> ov_genai.SchedulerConfig:
    config = ov_genai.SchedulerConfig()
    for name in (
        "cache_size",
        "num_kv_blocks",
        "max_num_seqs",
        "max_num_batched_tokens",
        "dynamic_split_fuse",
        "enable_prefix_caching",
    ):
        try:
            setattr(config, name, getattr(spec, name))
        except (TypeError, OverflowError) as error:
            raise LoadError(f"{getattr(spec, name)!r} is not a possible value", field=name) from error
    if spec.cache_interval_multiplier is not None:
        config.cache_interval_multiplier = spec.cache_interval_multiplier
    if spec.cache_eviction is not None:
        config.use_cache_eviction = True
        config.cache_eviction_config = _cache_eviction(spec.cache_eviction)
    if spec.sparse_attention is not None:
        config.use_sparse_attention = True
        config.sparse_attention_config = _sparse_attention(spec.sparse_attention)
    return config


def _cache_eviction(eviction: CacheEviction) -> ov_genai.CacheEvictionConfig:
    anchor = getattr(ov_genai.KVCrushAnchorPointMode, eviction.crush_anchor)
    try:
        return ov_genai.CacheEvictionConfig(
            eviction.start_size,
            eviction.recent_size,
            eviction.max_cache_size,
            getattr(ov_genai.AggregationMode, eviction.aggregation_mode),
            eviction.apply_rotation,
            eviction.snapkv_window_size,
            ov_genai.KVCrushConfig(eviction.crush_budget, anchor, eviction.crush_seed),
        )
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="cache_eviction_config") from error


def _sparse_attention(sparse: SparseAttention) -> ov_genai.SparseAttentionConfig:
    mode = getattr(ov_genai.SparseAttentionMode, sparse.mode)
    try:
        return ov_genai.SparseAttentionConfig(mode, **sparse.settings)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="sparse_attention_config") from error


def properties(spec: GenerationSpec) -> dict[str, object]:
    """Options of the device, and the library's own that choose how to decode."""
    try:
        options: dict[str, object] = device_properties(spec.properties, spec.device)
    except ValueError as error:
        raise LoadError(f"not a JSON object: {error}", field="plugin_config") from error
    if not isinstance(spec, TextSpec) or isinstance(spec, PagedTextSpec):
        return options
    if spec.prompt_lookup:
        options["prompt_lookup"] = True
    if spec.draft is not None:
        options["draft_model"] = _draft_model(spec, spec.draft)
    if spec.adapter is not None:
        options["adapters"] = _adapters(spec, spec.adapter)
    return options


def _adapters(spec: TextSpec, adapter: LoraAdapter) -> object:
    """Return the adapter, fused into float weights, and otherwise computed next to them in every step.

    The library ignores adapters of other modes in requests of a batch. It also ignores an adapter whose
    layers it does not find, so that is a LoadError here.
    """
    if fault := unusable(adapter.path, spec.model_path):
        raise LoadError(fault, field="lora_adapters")
    try:
        weights = ov_genai.Adapter(adapter.path)
    except RuntimeError as error:
        raise LoadError(f"{adapter.path}: {sentence(error)}", field="lora_adapters") from error
    modes = ov_genai.AdapterConfig.Mode
    mode = modes.MODE_STATIC if compressed(spec.model_path) else modes.MODE_FUSE
    return ov_genai.AdapterConfig(weights, adapter.alpha, mode)


def _draft_model(spec: TextSpec, draft: DraftSpec) -> object:
    more: dict[str, object] = device_properties("", draft.device)
    if draft.eagle3:
        more["eagle3_mode"] = True
    if draft.cache_size is not None or draft.max_num_seqs is not None:
        more["scheduler_config"] = draft_scheduler_config(spec, draft)
    try:
        with writable(draft.model_path) as path:
            return ov_genai.draft_model(path, draft.device, **more)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="draft_models_path") from error


def draft_scheduler_config(spec: TextSpec, draft: DraftSpec) -> ov_genai.SchedulerConfig:
    """The main model's, but for what the draft has of its own."""
    config = scheduler_config(spec)
    if draft.cache_size is not None:
        config.cache_size = draft.cache_size
    if draft.max_num_seqs is not None:
        config.max_num_seqs = draft.max_num_seqs
    return config


def to_blame(spec: GenerationSpec, message: str) -> str:
    """The option of the graph that an error while building the pipeline is about; "" if that is not known."""
    if isinstance(spec, TextSpec) and spec.draft is not None and "draft" in message.lower():
        return "draft_models_path"
    if "Device with" in message or "Cannot load library" in message:
        return "device"
    if "Unsupported property" in message or "property key" in message:
        return "plugin_config"
    return ""


def sentence(error: Exception) -> str:
    """The library's last sentence, without the source lines and check expressions before it."""
    return sentences_of(error)[-1].removeprefix("NotFound: ")


# A request's Sampling as the library's GenerationConfig.


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
            raise InvalidArgument.at(name, f"{value!r} is not a possible value") from error
    try:
        config.validate()
    except RuntimeError as error:
        raise InvalidArgument(sentence(error)) from error
    return config


# Load a .gguf file that this process may not write.
#
# - What the library does: it opens .gguf files for reading and writing, though it only reads them. A file of
#   another user, or on a read-only file system, is "Failed to open ... with gguf_open". Containers usually
#   have such files: /mnt/models of KServe, a claim that is mounted read-only, an image with models.
# - The way around: the library gets a copy. It has no name on the disk, so it is gone with the process.
# - Seen: tests/engine/test_gguf.py, and https://github.com/antirez/gguf-tools/issues/18, read on
#   2026-11-23.
#   Versions: OpenVINO GenAI 2026.4.1.
# - It can go when the library opens .gguf files for reading alone.


PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
COPY_CHUNK = 16 << 20


@contextmanager
def writable(path: str) -> Iterator[str]:
    """Yield what the library is to open: `path`, or where that may not be written, a copy for as long as this
    lasts. Raises LoadError if there is no room for the copy."""
    if not path.endswith(".gguf") or os.access(path, os.W_OK) or not os.access(path, os.R_OK):
        yield path
        return
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_directory("ovserve-gguf-"))
        try:
            for part in _parts(Path(path)):
                copy = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                with part.open("rb") as source:
                    shutil.copyfileobj(source, copy, COPY_CHUNK)
                copy.flush()
                (folder / part.name).symlink_to(f"/proc/self/fd/{copy.fileno()}")
        except OSError as error:
            raise LoadError(
                f"the library needs a .gguf file that it may write, and a copy in {folder.parent} failed: "
                f"{error.strerror}; `ovserve pull --convert` makes a form that is only read",
                file=path,
            ) from error
        print(f"{path} may not be written: a copy in {folder.parent} is read", file=sys.stderr)  # noqa: T201  the log
        yield str(folder / Path(path).name)


def _parts(path: Path) -> list[Path]:
    """Return the files of a model that was split, as the library looks for them next to the first."""
    if not PART.search(path.name):
        return [path]
    return sorted(path.parent.glob(PART.sub("-*.gguf", path.name)))

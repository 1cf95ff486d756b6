"""What is tried on which processor, and that a choice means the same in a spec and in a graph."""

from __future__ import annotations

import json

import msgspec

from ovserve.engine.host.cpu import Processor
from ovserve.engine.protocol.specs import CacheEviction, PagedTextSpec, TextSpec
from ovserve.tools.tuning.graph_file import DIMENSIONS, Choices, applied, dimensions, label

SMALL = Processor("small", 2, 2, frozenset({"avx512_bf16"}))
SPEC = TextSpec("/m.gguf")


def values(found: dict[str, Choices]) -> dict[str, list[object]]:
    return {name: [next(iter(choice.values())) for choice in choices] for name, choices in found.items()}


def test_the_processor_decides() -> None:
    small = values(dimensions(SPEC, SMALL, context=8192))
    assert small["precision"] == ["f32", "bf16"]
    assert small["threads"] == [2, 1]
    assert "hyper_threading" not in small
    assert "pinning" not in small
    large = values(
        dimensions(SPEC, Processor("large", 8, 16, frozenset({"amx_bf16", "amx_fp16"})), context=None)
    )
    assert large["precision"] == ["f32", "bf16", "f16"]
    assert large["threads"] == [16, 8, 7, 4]
    assert large["hyper_threading"] == [True, False]
    assert "split_fuse" not in large, "no whole prompts where their length is unknown"
    old = values(dimensions(SPEC, Processor("old", 1, 1), context=8192))
    assert old["precision"] == ["f32"]
    assert "streams" not in old
    gpu = values(dimensions(msgspec.structs.replace(SPEC, device="GPU"), SMALL, context=8192))
    assert "threads" not in gpu
    assert gpu["precision"] == ["f16", "f32"]


def test_what_the_graph_has_already_is_not_tried() -> None:
    own = TextSpec("/m.gguf", properties='{"INFERENCE_PRECISION_HINT": "f32"}', max_num_batched_tokens=1024)
    found = values(dimensions(own, SMALL, context=8192, weights=("/m.gguf", "/ir")))
    assert found["precision"] == ["bf16"]
    assert found["batched_tokens"] == [256, 512, 2048, 4096]
    assert found["weights"] == ["/ir"]


def test_dimensions_have_the_names_that_can_be_asked_for() -> None:
    large = Processor("large", 8, 16, frozenset({"amx_bf16"}))
    every = dimensions(SPEC, large, context=8192, weights=("/ir",))
    assert tuple(every) == DIMENSIONS
    two = dimensions(SPEC, large, context=8192, only=("threads", "kv_cache"))
    assert list(two) == ["threads", "kv_cache"]


def test_nothing_is_tried_that_the_paged_engine_lacks() -> None:
    found = values(dimensions(PagedTextSpec("/m"), SMALL, context=8192))
    assert "batched_tokens" in found
    assert "split_fuse" not in found


def test_options_are_applied_to_the_field_they_mean() -> None:
    spec = TextSpec("/m", properties='{"B": 1}', cache_eviction=CacheEviction(1, 2, 3))
    made = applied(spec, {"A": "x", "models_path": "/n", "max_num_batched_tokens": 512})
    assert json.loads(made.properties) == {"A": "x", "B": 1}
    assert (made.model_path, made.max_num_batched_tokens) == ("/n", 512)
    assert made.cache_eviction == spec.cache_eviction
    assert label({"A": True, "models_path": "/a/b"}) == "A=true, models_path=b"

"""Options of the engine on the real library: read back from its own configuration, or shown by their effect;
and the sizes that `kinds/text/engine_spec.py` refuses, for what they do to a running engine."""

from __future__ import annotations

from typing import Any

import pytest

from ovserve.engine.protocol.specs import CacheEviction, DraftSpec, SparseAttention, TextSpec
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.genai.options import draft_scheduler_config, scheduler_config
from tests.engine.real import CHAT, EXACT, FRANCE, STORY, add, generate

LONG = CHAT.format("once upon a time there was a dragon and a knight who " * 60)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"cache_size": 3}, "cache_size", 3),
        ({"num_kv_blocks": 9}, "num_kv_blocks", 9),
        ({"max_num_seqs": 7}, "max_num_seqs", 7),
        ({"max_num_batched_tokens": 512}, "max_num_batched_tokens", 512),
        ({"dynamic_split_fuse": False}, "dynamic_split_fuse", False),
        ({"enable_prefix_caching": True}, "enable_prefix_caching", True),
        ({"cache_interval_multiplier": 16}, "cache_interval_multiplier", 16),
        ({}, "cache_interval_multiplier", None),
        ({}, "use_cache_eviction", False),
        ({"cache_eviction": CacheEviction(32, 32, 96)}, "use_cache_eviction", True),
        ({}, "use_sparse_attention", False),
        ({"sparse_attention": SparseAttention()}, "use_sparse_attention", True),
    ],
)
def test_an_option_is_read_back(options: dict[str, Any], name: str, value: object) -> None:
    assert getattr(scheduler_config(TextSpec("m", **options)), name) == value


def test_every_size_of_cache_eviction_is_read_back() -> None:
    wanted = CacheEviction(32, 64, 192, "SUM", True, 16, crush_budget=2, crush_anchor="MEAN", crush_seed=5)
    found = scheduler_config(TextSpec("m", cache_eviction=wanted)).cache_eviction_config
    assert (found.get_start_size(), found.get_recent_size(), found.get_max_cache_size()) == (32, 64, 192)
    assert (found.aggregation_mode.name, found.apply_rotation, found.snapkv_window_size) == ("SUM", True, 16)
    crush = found.kvcrush_config
    assert (crush.budget, crush.anchor_point_mode.name, crush.rng_seed) == (2, "MEAN", 5)


def test_every_setting_of_sparse_attention_is_read_back() -> None:
    settings: dict[str, float] = {
        "num_last_dense_tokens_in_prefill": 10,
        "num_retained_start_tokens_in_cache": 64,
        "num_retained_recent_tokens_in_cache": 96,
        "xattention_threshold": 0.25,
        "xattention_block_size": 128,
        "xattention_stride": 16,
    }
    spec = TextSpec("m", sparse_attention=SparseAttention("XATTENTION", settings))
    found = scheduler_config(spec).sparse_attention_config
    assert found.mode.name == "XATTENTION"
    assert {name: getattr(found, name) for name in settings} == settings


def test_a_draft_has_the_main_model_s_scheduling_but_for_its_own() -> None:
    draft = DraftSpec("d", cache_size=2, max_num_seqs=5)
    spec = TextSpec("m", cache_size=4, max_num_batched_tokens=512, draft=draft)
    found = draft_scheduler_config(spec, draft)
    assert (found.cache_size, found.max_num_seqs, found.max_num_batched_tokens) == (2, 5, 512)
    assert draft_scheduler_config(spec, DraftSpec("d", max_num_seqs=5)).cache_size == 4


def blocks_used(engine: GenAIEngine, prompt: str, tokens: int) -> int:
    """The most blocks of the cache that were in use at once."""
    add(engine, 1, prompt, ignore_eos=True, max_tokens=tokens)
    most = 0.0
    while engine.busy:
        engine.step()
        most = max(most, engine._pipeline.get_metrics().cache_usage)
        engine.collect()
    return round(most * 20 / 100)


@pytest.mark.slow
def test_cache_eviction_bounds_the_cache_of_an_answer(model_path: str) -> None:
    plain = GenAIEngine(TextSpec(model_path, num_kv_blocks=20))
    bounded = GenAIEngine(TextSpec(model_path, num_kv_blocks=20, cache_eviction=CacheEviction(32, 32, 96)))
    assert blocks_used(plain, STORY, 130) == 5
    assert blocks_used(bounded, STORY, 130) == 4  # 96 tokens, and the block being filled


@pytest.mark.slow
def test_sparse_attention_and_prefix_caching_show(model_path: str) -> None:
    plain = GenAIEngine(TextSpec(model_path, enable_prefix_caching=True))
    small = {"num_last_dense_tokens_in_prefill": 10, "num_retained_start_tokens_in_cache": 32}
    sparse = GenAIEngine(
        TextSpec(
            model_path,
            sparse_attention=SparseAttention(
                "TRISHAPE", {**small, "num_retained_recent_tokens_in_cache": 64}
            ),
        )
    )
    scores = [generate(e, LONG, logprobs=True, max_tokens=8).logprobs for e in (plain, sparse)]
    assert scores[0] != scores[1]
    # The same prompt again: all blocks but the last are there, so one step is enough where three were not.
    steps = []
    for prompt in (LONG[:-30] + "x", LONG[:-30] + "x"):
        add(plain, 1, prompt, max_tokens=1)
        steps.append(0)
        while plain.busy:
            plain.step()
            plain.collect()
            steps[-1] += 1
    assert steps[1] == 1


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"device": "FOO"}, "device", 'Device with "FOO" name is not registered'),
        ({"properties": '{"FOO": 1}'}, "plugin_config", "Unsupported property FOO"),
        ({"properties": '{"INFERENCE_NUM_THREADS": "x"}'}, "plugin_config", "INFERENCE_NUM_THREADS"),
    ],
)
def test_what_only_the_library_knows_is_a_load_error_with_its_field(
    tiny_path: str, spec: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        GenAIEngine(TextSpec(tiny_path, **spec))
    assert caught.value.field == field


@pytest.mark.slow
def test_lookup_changes_what_eviction_leaves(model_path: str) -> None:
    """So `kinds/text/engine_spec.py` refuses the two together."""
    texts = {
        generate(
            GenAIEngine(
                TextSpec(
                    model_path,
                    prompt_lookup=lookup,
                    cache_eviction=CacheEviction(32, 32, 96),
                    properties=EXACT,
                )
            ),
            STORY,
            ignore_eos=True,
            max_tokens=150,
        ).text
        for lookup in (False, True)
    }
    assert len(texts) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"cache_eviction": CacheEviction(31, 33, 100)}, FRANCE),
        ({"sparse_attention": SparseAttention("TRISHAPE", {"num_retained_start_tokens_in_cache": 33})}, LONG),
        ({"sparse_attention": SparseAttention("XATTENTION", {"xattention_block_size": 7})}, LONG),
    ],
)
def test_a_size_that_is_no_whole_block_kills_a_running_engine(
    model_path: str, options: dict[str, Any], prompt: str
) -> None:
    """So `kinds/text/engine_spec.py` refuses it."""
    with pytest.raises((LoadError, RuntimeError), match=r"block|multiple"):
        generate(GenAIEngine(TextSpec(model_path, **options)), prompt, ignore_eos=True, max_tokens=150)

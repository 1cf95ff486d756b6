"""Attention of our own, against the same in numpy, and in the engine."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import openvino
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from ovserve.engine.host.cpu import processor
from ovserve.engine.protocol.messages import StepItem
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.kinds.text.worker.kernels.attention import ADDRESS_BYTES
from ovserve.kinds.text.worker.kernels.library import Library, open_library
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from tests.engine.real import LIST, STORY, add, generate, run

pytestmark = pytest.mark.skipif(
    not processor().has_kernels, reason="OpenVINO's attention computes on this processor"
)
NO_NUMBER = 0x7FC0

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
Integers = NDArray[np.int32]


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library()


def bf16(numbers: Floats) -> Bits:
    bits: Bits = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    return bits


def numbers(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Operation:
    """A model of one operation."""

    def __init__(
        self,
        library: Library,
        heads: int,
        kv_heads: int,
        size: int,
        window: int = 0,
        sinks: Floats | None = None,
    ) -> None:
        self._heads, self._size = heads, size
        inputs = [
            *(ops.parameter([-1, count * size], np.float32) for count in (heads, kv_heads, kv_heads)),
            ops.parameter([4 * ADDRESS_BYTES], np.uint8),
            *(ops.parameter([-1], np.int32) for _ in range(4)),
        ]
        attributes = {"scale": size**-0.5, "window": window, "kv_heads": kv_heads, "layer": 1}
        known = [] if sinks is None else [ops.constant(sinks)]
        node = library.attention([each.output(0) for each in [*inputs, *known]], **attributes)
        model = openvino.Model([ops.result(node)], inputs)
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        self._request = openvino.Core().compile_model(model, "CPU", hint).create_infer_request()

    def __call__(self, rows: list[Floats], caches: list[Bits], places: list[Integers]) -> Floats:
        """`rows`: queries, keys and values, [tokens, heads, size]. `places`: past_lens, subsequence_begins,
        block_indices, block_indices_begins."""
        addresses = np.array([0, 0, *(cache.ctypes.data for cache in caches)], np.int64)  # of two layers
        given = [*(row.reshape(len(row), -1) for row in rows), addresses.view(np.uint8), *places]
        for at, array in enumerate(given):
            tensor = openvino.Tensor(np.ascontiguousarray(array), shared_memory=True)
            self._request.set_input_tensor(at, tensor)
        self._request.infer()
        out: Floats = self._request.get_output_tensor(0).data.reshape(-1, self._heads, self._size).copy()
        return out


def attention(
    query: Floats, keys: Floats, values: Floats, window: int, sinks: Floats | None
) -> NDArray[np.float64]:
    """`query` [heads, size], `keys` and `values` [tokens, kv_heads, size], `sinks` [heads]."""
    seen = slice(max(0, len(keys) - window) if window else 0, None)
    of_heads = [
        np.repeat(each[seen].astype(np.float64), len(query) // each.shape[1], 1) for each in (keys, values)
    ]
    scores = np.einsum("hs,nhs->hn", query, of_heads[0]) * query.shape[1] ** -0.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    unseen = 0 if sinks is None else np.exp(sinks[:, None] - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True) + unseen
    product: NDArray[np.float64] = np.einsum("hn,nhs->hs", weights, of_heads[1])
    return product


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(9, 3, 64), (24, 8, 128), (8, 1, 256), (14, 2, 64), (4, 4, 96), (5, 5, 32), (10, 2, 160)],
)
@pytest.mark.parametrize(("window", "sinks"), [(0, False), (1, False), (70, False), (0, True), (70, True)])
def test_tokens_as_in_numpy(
    library: Library, heads: int, kv_heads: int, size: int, window: int, sinks: bool
) -> None:
    """Contexts end within a block, at its end, and behind several parts; unused places hold no numbers."""
    random = np.random.default_rng(heads)
    lost = random.standard_normal(heads).astype(np.float32) * 4 if sinks else None
    operation = Operation(library, heads, kv_heads, size, window, lost)
    contexts = [1, 2, 31, 32, 33, 100, 512, 513, 1100]
    counts = [-(-tokens // BLOCK_TOKENS) for tokens in contexts]
    caches = [np.full((sum(counts), kv_heads, BLOCK_TOKENS, size), NO_NUMBER, np.uint16) for _ in range(2)]
    blocks = random.permutation(sum(counts)).astype(np.int32)
    begins = np.array([0, *np.cumsum(counts)], np.int32)
    new = [
        random.standard_normal((len(contexts), each, size), np.float32)
        for each in (heads, kv_heads, kv_heads)
    ]
    new[0] *= 3
    known: list[list[Floats]] = []
    for at, tokens in enumerate(contexts):
        bits = [bf16(random.standard_normal((tokens, kv_heads, size), np.float32)) for _ in caches]
        for cache, each, fresh in zip(caches, bits, new[1:], strict=True):
            each[-1] = bf16(fresh[at])
            for token in range(tokens - 1):
                block = blocks[begins[at] + token // BLOCK_TOKENS]
                cache[block, :, token % BLOCK_TOKENS] = each[token]
        known.append([numbers(each) for each in bits])
    past = np.array(contexts, np.int32) - 1
    ones = np.arange(len(contexts) + 1, dtype=np.int32)
    out = operation(new, caches, [past, ones, blocks, begins])
    for at, tokens in enumerate(contexts):
        block = blocks[begins[at] + (tokens - 1) // BLOCK_TOKENS]
        for cache, whole in zip(caches, known[at], strict=True):
            assert np.array_equal(numbers(cache[block, :, (tokens - 1) % BLOCK_TOKENS]), whole[-1])
        expected = attention(new[0][at], *known[at], window, lost)
        np.testing.assert_allclose(out[at], expected, rtol=0, atol=2e-6 * max(1.0, np.abs(expected).max()))
        places = [past[at : at + 1], ones[:2], blocks, begins[at : at + 2]]
        alone = operation([each[at : at + 1] for each in new], caches, places)
        assert np.array_equal(alone[0], out[at])  # whoever else is in the step


def test_sequences_take_turns_as_if_they_did_not(library: Library) -> None:
    """600 of nine parts and eight heads need 43,200 partials; 32,768 are computed at a time."""
    random, operation = np.random.default_rng(1), Operation(library, 8, 2, 32)
    count, shared = 600, 128  # blocks: 4,096 tokens before each
    caches = [
        bf16(random.standard_normal((shared + count, 2, BLOCK_TOKENS, 32), np.float32)) for _ in range(2)
    ]
    own = [[*range(shared), shared + each] for each in range(count)]
    new = [random.standard_normal((count, heads, 32), np.float32) for heads in (8, 2, 2)]
    past = np.full(count, shared * BLOCK_TOKENS, np.int32)
    ones = np.arange(count + 1, dtype=np.int32)
    begins = ones * np.int32(shared + 1)
    out = operation(new, caches, [past, ones, np.concatenate(own).astype(np.int32), begins])
    for at in (0, 1, 454, 455, 456, count - 1):  # 456 come first
        places = [past[:1], ones[:2], np.array(own[at], np.int32), begins[:2]]
        alone = operation([each[at : at + 1] for each in new], caches, places)
        assert np.array_equal(alone[0], out[at]), at


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(9, 3, 64), (6, 2, 128), (8, 1, 256), (4, 4, 96), (5, 5, 32), (5, 1, 160)]
)
@pytest.mark.parametrize(
    ("window", "sinks"), [(0, False), (3, False), (70, False), (600, False), (0, True), (70, True)]
)
def test_prompts_as_in_numpy(
    library: Library, heads: int, kv_heads: int, size: int, window: int, sinks: bool
) -> None:
    """They begin and end within a block and behind several parts; unused places hold no numbers."""
    random = np.random.default_rng(heads)
    lost = random.standard_normal(heads).astype(np.float32) * 4 if sinks else None
    operation = Operation(library, heads, kv_heads, size, window, lost)
    prompts = [
        (0, 2),
        (0, 31),
        (5, 40),
        (31, 33),
        (480, 70),
        (1000, 1),
        (1030, 150),
    ]  # tokens before, new ones
    starts = np.array([0, *np.cumsum([new for _, new in prompts])], np.int32)
    counts = [-(-(before + new) // BLOCK_TOKENS) for before, new in prompts]
    blocks = random.permutation(sum(counts)).astype(np.int32)
    begins = np.array([0, *np.cumsum(counts)], np.int32)
    caches = [np.full((sum(counts), kv_heads, BLOCK_TOKENS, size), NO_NUMBER, np.uint16) for _ in range(2)]
    new = [
        random.standard_normal((starts[-1], each, size), np.float32) for each in (heads, kv_heads, kv_heads)
    ]
    new[0] *= 3
    contexts: list[list[Floats]] = []
    for at, (before, tokens) in enumerate(prompts):
        known = [bf16(random.standard_normal((before, kv_heads, size), np.float32)) for _ in caches]
        for cache, bits in zip(caches, known, strict=True):
            for token in range(before):
                cache[blocks[begins[at] + token // BLOCK_TOKENS], :, token % BLOCK_TOKENS] = bits[token]
        own = slice(starts[at], starts[at] + tokens)
        contexts.append(
            [
                np.concatenate([numbers(bits), numbers(bf16(fresh[own]))])
                for bits, fresh in zip(known, new[1:], strict=True)
            ]
        )
    past = np.array([before if tokens > 1 else ~before for before, tokens in prompts], np.int32)
    out = operation(new, caches, [past, starts, blocks, begins])
    for at, (before, tokens) in enumerate(prompts):
        for row in {0, tokens // 2, tokens - 1}:
            seen = [each[: before + row + 1] for each in contexts[at]]
            expected = attention(new[0][starts[at] + row], *seen, window, lost)
            # Queries and weights are rounded to eight bits.
            np.testing.assert_allclose(out[starts[at] + row], expected, atol=0.02 * np.abs(expected).max())

        def alone(first: int, end: int, *, prompt: int = at, before: int = before) -> Floats:
            part = slice(starts[prompt] + first, starts[prompt] + end)
            past = before + first
            places = [[past if end - first > 1 else ~past], [0, end - first]]
            tables = [blocks, begins[prompt : prompt + 2]]
            return operation(
                [each[part] for each in new], caches, [np.array(p, np.int32) for p in places] + tables
            )

        own = out[starts[at] : starts[at] + tokens]
        assert np.array_equal(alone(0, tokens), own)  # whoever else is in the step
        for half in {1, tokens // 2, tokens - 1} if tokens > 1 else ():  # in however many steps
            assert np.array_equal(np.concatenate([alone(0, half), alone(half, tokens)]), own)


def test_rounding_as_ml_dtypes_rounds(library: Library) -> None:
    ties = [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-9, -(1 + 2**-8 + 2**-20), 1e-30, 3.4e38, -np.inf]
    row = np.tile(np.array(ties, np.float32), 4).reshape(1, 1, 32)
    caches = [np.zeros((1, 1, BLOCK_TOKENS, 32), np.uint16) for _ in range(2)]
    zero = np.zeros(1, np.int32)
    one = np.array([0, 1], np.int32)
    Operation(library, 1, 1, 32)([row, row, row], caches, [zero, one, zero, one])
    assert np.array_equal(caches[0][0, 0, 0], bf16(row).reshape(-1))
    row[...] = np.nan
    Operation(library, 1, 1, 32)([row, row, row], caches, [zero, one, zero, one])
    assert np.isnan(numbers(caches[1][0, 0, 0])).all()


@pytest.mark.long
def test_neither_drafts_nor_company_change_a_text(short_model: Path) -> None:
    """Each token of an answer is computed as if it were alone, also next to a prompt. Log-probabilities would show
    what is too small to change a text."""
    spec = PagedTextSpec(str(short_model), properties='{"KV_CACHE_PRECISION": "bf16"}')
    engine = PagedEngine(spec)
    engine.wait_for_forms()
    assert engine._model.own_attention
    for prompt in (LIST, STORY):
        plain = generate(engine, prompt, max_tokens=80, num_assistant_tokens=0, logprobs=True)
        drafted = generate(engine, prompt, max_tokens=80, num_assistant_tokens=8, logprobs=True)
        assert drafted.drafted
        assert (drafted.text, drafted.logprobs) == (plain.text, plain.logprobs)
        for id_ in range(5):
            add(engine, id_, prompt, max_tokens=80, num_assistant_tokens=0, logprobs=True)
        for result in run(engine).values():
            assert (result.text, result.logprobs) == (plain.text, plain.logprobs)
        add(engine, 0, prompt, max_tokens=80, num_assistant_tokens=0)
        text = ""
        for step in range(40):
            if step % 10 == 5:
                add(engine, step, f"{step} {STORY} {LIST}", max_tokens=3, num_assistant_tokens=0)
            engine.step()
            text += "".join(
                word.text for word in engine.collect() if isinstance(word, StepItem) and not word.id
            )
        assert text + run(engine)[0].text == plain.text


@pytest.mark.long
@pytest.mark.parametrize("left", [1, 2, 17])
def test_a_cached_prompt_is_rounded_as_a_new_one(short_model: Path, left: int) -> None:
    """As few tokens as `left` are computed, the others were before."""
    spec = PagedTextSpec(str(short_model), properties='{"KV_CACHE_PRECISION": "bf16"}')
    engine, ids = PagedEngine(spec), tuple(range(200, 200 + 3 * BLOCK_TOKENS + left))
    engine.wait_for_forms()
    assert engine._model.own_attention
    first, second = (
        generate(engine, ids, max_tokens=20, logprobs=3, num_assistant_tokens=0) for _ in range(2)
    )
    assert first.logprobs
    assert second.logprobs == first.logprobs


@pytest.mark.long
def test_a_last_token_of_a_prompt_with_drafts(short_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step leaves one token of the prompt, and drafts follow it in the next."""
    directory, ids = str(short_model), tuple(range(200, 200 + 3 * BLOCK_TOKENS + 1))
    whole, cut = (
        PagedEngine(
            PagedTextSpec(
                directory, properties='{"KV_CACHE_PRECISION": "bf16"}', max_num_batched_tokens=tokens
            )
        )
        for tokens in (1024, 3 * BLOCK_TOKENS)
    )
    plain = generate(whole, ids, max_tokens=8, logprobs=3, num_assistant_tokens=0)
    monkeypatch.setattr(
        cut, "_draft", lambda running, num_decoding: (5, 6) if running.remaining_tokens > 2 else ()
    )
    drafted = generate(cut, ids, max_tokens=8, logprobs=3)
    assert drafted.drafted
    assert plain.logprobs
    assert drafted.logprobs == plain.logprobs

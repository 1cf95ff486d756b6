"""Encoders on the real runtime: the converter, pooling, batches and accuracy, against transformers' own answers."""

from __future__ import annotations

import base64
import json
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from ovserve.engine.protocol.call_backend import Invocation, Outcome, Result
from ovserve.engine.protocol.messages import Call
from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import (
    EMBED,
    SEPARATOR,
    EmbedAnswer,
    EmbedArguments,
    EmbeddingSpec,
    read_encoder_files,
)
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.embed import EmbeddingBackend
from ovserve.kinds.encoders.worker.model import SHORT_TEXT_CHARACTERS, FastTokenizer, Framed, open_tokenizer
from ovserve.kinds.encoders.worker.pool import Job, Pool
from scripts.encoder_goldens import texts
from tests.encoders import FETCH, MINILM, VECTORS, answers, tiny

F32 = '{"INFERENCE_PRECISION_HINT": "f32"}'


def embed(backend: EmbeddingBackend, inputs: object, **more: Any) -> tuple[EmbedAnswer, np.ndarray]:
    call = Call(1, EMBED, msgspec.msgpack.encode(EmbedArguments(**more)), (msgspec.msgpack.encode(inputs),))
    (result,) = backend.call(Invocation(call))
    parts = [json.loads(part) for part in bytes(result.blobs[0]).split(SEPARATOR)]
    if more.get("encoding") == "base64":
        return result.value, np.array([np.frombuffer(base64.b64decode(p), "<f4") for p in parts])
    return result.value, np.array(parts, np.float32)


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingBackend:
    directory = tiny("mpnet", tmp_path_factory.mktemp("mpnet"))
    return EmbeddingBackend(EmbeddingSpec(str(directory), properties=F32, pooling="MEAN", normalize=False))


@pytest.mark.parametrize("name", ["roberta", "mpnet"])
def test_a_converted_model_answers_as_transformers_does(name: str, tmp_path: Path) -> None:
    directory = tiny(name, tmp_path)
    backend = EmbeddingBackend(EmbeddingSpec(str(directory), properties=F32, pooling="MEAN", normalize=False))
    known = answers(name)
    _, vectors = embed(backend, [a["query"] for a in known])
    np.testing.assert_allclose(vectors, [a["values"] for a in known], atol=2e-6)


def test_only_a_short_text_is_read_with_pythons_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = open_tokenizer(VECTORS / "bert")
    assert isinstance(tokenizer, FastTokenizer)
    inner, held = tokenizer._inner, list[int]()

    class Noting:
        encode_batch_fast = inner.encode_batch_fast

        def encode(self, text: str, **more: Any) -> Any:
            held.append(len(text))
            return inner.encode(text, **more)

    monkeypatch.setattr(tokenizer, "_inner", Noting())
    for text in ("the ship", "x" * SHORT_TEXT_CHARACTERS, "the ship " * SHORT_TEXT_CHARACTERS):
        (alone,) = tokenizer.encode([text])
        assert alone.tolist() == tokenizer.encode([text, text])[1].tolist()
    assert held == [len("the ship"), SHORT_TEXT_CHARACTERS]


def test_a_text_alone_equals_the_text_among_31_others(mpnet: EmbeddingBackend) -> None:
    words = [
        "the",
        "ship",
        "left",
        "the",
        "harbour",
        "before",
        "sunrise",
        "and",
        "prices",
        "rose",
        "by",
        "three",
        "percent",
    ]
    many = [" ".join(words[: 1 + i % 13] * (1 + i % 4)) for i in range(32)]
    _, together = embed(mpnet, many)
    alone = np.concatenate([embed(mpnet, [text])[1] for text in many])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_requests_at_once_get_their_own_vectors(mpnet: EmbeddingBackend) -> None:
    """Rows of all requests share batches; each request gets its own back, in its own order."""
    sentences = ["the ship", "a small orchestra plays", "prices rose", "oil", "the cello in the harbour"] * 8
    alone = {text: embed(mpnet, [text])[1][0] for text in set(sentences)}
    failures: list[str] = []

    def client(number: int) -> None:
        for i in range(10):
            asked = sentences[number : number + 1 + i]
            _, got = embed(mpnet, asked)
            if np.abs(got - np.array([alone[t] for t in asked])).max() > 1e-4:
                failures.append(f"client {number}, request {i}")

    threads = [threading.Thread(target=client, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(not MINILM.is_dir(), reason=FETCH)
def test_minilm_matches_sentence_transformers_on_200_texts_in_ten_languages() -> None:
    backend = EmbeddingBackend(EmbeddingSpec(str(MINILM), properties=F32))
    answer, vectors = embed(backend, texts(), truncate=512)  # as the vectors were made
    expected = np.load(VECTORS / "minilm.npy").astype(np.float32)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert vectors.shape == (200, 384)
    assert (vectors * expected).sum(axis=1).min() >= 0.9999
    _, alone = embed(backend, texts()[17:18])
    assert np.abs(alone[0] - vectors[17]).max() <= 1e-4
    assert answer.batches.padded, "it reports its batches"
    assert max(answer.batches.padded) <= 512
    assert sum(answer.batches.padded) <= 1.25 * answer.tokens, "sorted by length, little is padding"


def test_dimensions_are_cut_and_of_unit_length_again(tmp_path: Path) -> None:
    directory = tiny("roberta", tmp_path, matryoshka_dimensions=[4, 8])
    backend = EmbeddingBackend(EmbeddingSpec(str(directory), properties=F32))
    _, whole = embed(backend, ["the ship"])
    _, cut = embed(backend, ["the ship"], dimensions=8, encoding="base64")
    assert whole.shape == (1, 16)
    np.testing.assert_allclose(cut[0], whole[0, :8] / np.linalg.norm(whole[0, :8]), atol=1e-6)
    for wrong in (5, 17):
        with pytest.raises(InvalidArgument, match=f"dimensions: expected one of 4, 8, got {wrong}"):
            embed(backend, ["the ship"], dimensions=wrong)


def test_a_long_text_is_refused_or_cut_before_its_closing_token(mpnet: EmbeddingBackend) -> None:
    limit = mpnet.facts.max_length
    assert limit == 64, "66 positions, of which the first two are padding's"
    long = " ".join(["ship"] * limit)
    with pytest.raises(ContextLengthExceeded, match=r"Input length 66 longer than allowed 64: input\[1\]"):
        embed(mpnet, ["ship", long])
    answer, cut = embed(mpnet, ["ship", long * 3], truncate=0)
    assert (answer.tokens, answer.truncated) == (3 + limit, 1)
    _, fitting = embed(mpnet, [" ".join(["ship"] * (limit - 2))])
    np.testing.assert_allclose(cut[1], fitting[0], atol=1e-5)  # the closing token is still there
    answer, _ = embed(mpnet, ["the ship left the harbour"], truncate=4)
    assert answer.tokens == 4
    ids = mpnet.tokenizer.encode([long])[0].tolist()
    with pytest.raises(ContextLengthExceeded, match="Input length 66"):
        embed(mpnet, [ids], tokens=True)
    _, from_ids = embed(mpnet, [ids], tokens=True, truncate=0)
    np.testing.assert_allclose(from_ids, fitting, atol=1e-5)


def test_a_graph_can_bound_the_length_below_the_model(tmp_path: Path, mpnet: EmbeddingBackend) -> None:
    bounded = EmbeddingBackend(
        EmbeddingSpec(
            str(tiny("mpnet", tmp_path)), properties=F32, pooling="MEAN", normalize=False, max_length=8
        )
    )
    assert (bounded.facts.max_length, bounded.facts.max_seq_length) == (8, 8)
    with pytest.raises(ContextLengthExceeded, match="Input length 9 longer than allowed 8"):
        embed(bounded, [list(range(4, 13))], tokens=True)
    text = " ".join(["ship", "harbour"] * 9)
    for wanted in (0, 64):  # of a request; the graph's bound holds
        answer, cut = embed(bounded, [text], truncate=wanted)
        assert (answer.tokens, answer.truncated) == (8, 1)
        np.testing.assert_allclose(cut, embed(mpnet, [text], truncate=8)[1], atol=1e-5)


def test_a_text_is_cut_where_sentence_transformers_cuts_it(tmp_path: Path) -> None:
    directory = tiny("mpnet", tmp_path)
    spec = EmbeddingSpec(str(directory), properties=F32, pooling="MEAN", normalize=False)
    text = " ".join(["ship", "harbour"] * 20)
    _, all_of_it = embed(EmbeddingBackend(spec), [text])
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    backend = EmbeddingBackend(spec)
    assert (backend.facts.max_length, backend.facts.max_seq_length) == (64, 12)
    answer, cut = embed(backend, ["ship", text])
    assert (answer.tokens, answer.truncated) == (3 + 12, 1)
    _, known = embed(backend, [text], truncate=12)
    np.testing.assert_allclose(cut[1], known[0], atol=1e-5)
    assert np.abs(cut[1] - all_of_it[0]).max() > 1e-3
    for wanted in (64, 2000):  # what a request says wins
        answer, vectors = embed(backend, [text], truncate=wanted)
        assert answer.truncated == 0
        np.testing.assert_allclose(vectors, all_of_it, atol=1e-5)
    answer, _ = embed(backend, [text], truncate=0)
    assert (answer.tokens, answer.truncated) == (12, 1)
    with pytest.raises(ContextLengthExceeded, match="longer than allowed 12"):
        embed(backend, [text], whole=True)
    with pytest.raises(ContextLengthExceeded, match="longer than allowed 64"):
        embed(backend, [text * 2])


@pytest.mark.parametrize("value", ["null", "0", "-1", '"12"', "100000", "true"])
def test_other_values_of_max_seq_length_are_no_limit(value: str, tmp_path: Path) -> None:
    directory = tiny("mpnet", tmp_path)
    (directory / "sentence_bert_config.json").write_text(f'{{"max_seq_length": {value}}}')
    assert read_encoder_files(directory).sequence_length == 64


def test_token_ids_equal_their_text_and_foreign_ones_are_named(mpnet: EmbeddingBackend) -> None:
    ids = mpnet.tokenizer.encode(["the ship left"])[0].tolist()
    _, by_ids = embed(mpnet, [ids], tokens=True)
    _, by_text = embed(mpnet, ["the ship left"])
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)
    size = mpnet.facts.vocab_size
    with pytest.raises(InvalidArgument, match=rf"input\[1\]: token id {size} is not in .* of {size}"):
        embed(mpnet, [ids, [0, size]], tokens=True)


def test_10_mb_of_text_are_not_tokenised(mpnet: EmbeddingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpnet, "tokenizer", None)
    with pytest.raises(ContextLengthExceeded, match="10000000 characters are more than the 65536"):
        embed(mpnet, ["x" * 10_000_000])


def _last(mode: str) -> ov.Model:
    """A model whose token vectors are its ids, pooled by `mode`."""
    ids, mask = (op.parameter([-1, -1], ov.Type.i64, n) for n in ("input_ids", "attention_mask"))
    for node, name in ((ids, "input_ids"), (mask, "attention_mask")):
        node.output(0).set_names({name})
    x = op.unsqueeze(op.convert(ids, ov.Type.f32), op.constant(2))
    return models.pool(ov.Model([op.result(x)], [ids, mask], "identity"), mode, False)


@pytest.mark.parametrize(("mode", "right", "left"), [("CLS", 7, 0), ("MEAN", 8, 8), ("LAST", 9, 9)])
def test_pooling_follows_the_mask_on_either_side(mode: str, right: int, left: int) -> None:
    compiled = ov.Core().compile_model(_last(mode), "CPU")
    for ids, mask, expected in (([7, 8, 9, 0], [1, 1, 1, 0], right), ([0, 7, 8, 9], [0, 1, 1, 1], left)):
        (value,) = compiled({"input_ids": [ids], "attention_mask": [mask]}).to_tuple()
        assert value.tolist() == [[expected]]


def test_a_pooled_output_is_taken_as_it_is() -> None:
    ids, mask = (op.parameter([-1, -1], ov.Type.i64, n) for n in ("input_ids", "attention_mask"))
    total = op.reduce_sum(op.convert(ids, ov.Type.f32), op.constant(np.array([1])), True)
    compiled = ov.Core().compile_model(
        models.pool(ov.Model([op.result(total)], [ids, mask], "m"), "CLS", True), "CPU"
    )
    assert compiled([[[1, 2]], [[1, 1]]]).to_tuple()[0].tolist() == [[1.0]]


def test_a_model_that_is_no_encoder_is_named(tmp_path: Path) -> None:
    image = op.parameter([1, 3, 8, 8], ov.Type.f32, "image")
    image.output(0).set_names({"image"})
    ov.save_model(ov.Model([op.result(image)], [image], "m"), tmp_path / "openvino_model.xml")
    with pytest.raises(LoadError, match="expected the inputs input_ids and attention_mask, .* got image"):
        models.read(tmp_path)


def _rows(*lengths: int) -> Job:
    return Job([np.zeros(n, np.int32) for n in lengths])


def test_a_batch_has_rows_of_like_length_within_the_budget() -> None:
    pool = Pool(budget=100)
    job = _rows(*[10] * 12, 50, 48, 99)
    pool.add(job)
    batches = []
    while batch := pool.take():
        batches.append([len(place.row) for place in batch])
    assert batches == [[99], [48, 50], [10] * 10, [10] * 2]
    assert pool.rows == 0


def test_a_small_request_waits_for_one_batch_of_a_large_one() -> None:
    pool = Pool(budget=100)
    large, small = _rows(*[50] * 1000), _rows(9)
    pool.add(large)
    pool.add(small)
    assert {id(p.job) for p in pool.take()} == {id(large)}
    assert [p.job for p in pool.take()] == [small]


def test_a_batch_has_no_more_rows_than_its_stream_may_take() -> None:
    pool = Pool()
    pool.add(_rows(*[10] * 8))
    assert [len(pool.take(5)), len(pool.take(5))] == [5, 3]
    withdrawn = _rows(5, 5)
    pool.add(withdrawn)
    pool.remove(withdrawn)
    assert not pool.take()
    assert pool.rows == 0


def test_calls_of_one_read_share_batches(mpnet: EmbeddingBackend) -> None:
    embed(mpnet, ["the ship"])  # whose answer takes the counts so far
    ended: queue.SimpleQueue[Sequence[tuple[Invocation, Outcome]]] = queue.SimpleQueue()
    arguments, text = msgspec.msgpack.encode(EmbedArguments()), msgspec.msgpack.encode(["the cello"])
    for number in range(4):
        assert mpnet.begin(Invocation(Call(number, EMBED, arguments, (text,))), ended.put)
    mpnet.began()
    results: list[Outcome] = []
    while len(results) < 4:
        results += [outcome for _, outcome in ended.get(timeout=230)]
    counts = [r.value.batches for r in results if isinstance(r, Result)]
    assert len(counts) == 4
    # One for each stream; one more where a stream is done before the other wakes.
    assert sum(len(c.padded) for c in counts) < len(counts)


def test_special_tokens_are_found(tmp_path: Path) -> None:
    framed = Framed(open_tokenizer(VECTORS / "bert"))
    assert (framed.before, framed.after) == ((2,), (3,))
    assert framed.fit(np.array([2, 9, 9, 9, 3]), 3).tolist() == [2, 9, 3]
    assert framed.fit(np.array([9, 9, 9]), 2).tolist() == [9, 9], "ids that do not end as a text does"


def test_a_closed_backend_ends_its_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    backend = EmbeddingBackend(EmbeddingSpec(str(tiny("roberta", tmp_path))))
    streams = set(threading.enumerate()) - before
    assert streams
    backend.close()
    for thread in streams:
        thread.join(60)
        assert not thread.is_alive()

"""Rerankers on the real runtime: pairs of each family against transformers' own scores, chunks and limits."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ovserve.engine.protocol.call_backend import Invocation
from ovserve.engine.protocol.messages import Call
from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import RERANK, RerankAnswer, RerankArguments, RerankSpec
from ovserve.kinds.encoders.worker.model import open_tokenizer
from ovserve.kinds.encoders.worker.rerank import PairForm, RerankBackend, pair_form
from tests.encoders import VECTORS, answers, tiny

F32 = '{"INFERENCE_PRECISION_HINT": "f32"}'


def rank(
    backend: RerankBackend, query: str, documents: list[str], **more: Any
) -> tuple[RerankAnswer, np.ndarray]:
    arguments = RerankArguments(query, **{"max_chunks": 1000, **more})
    call = Call(1, RERANK, msgspec.msgpack.encode(arguments), (msgspec.msgpack.encode(documents),))
    (result,) = backend.call(Invocation(call))
    return result.value, np.frombuffer(bytes(result.blobs[0]), "<f4")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> RerankBackend:
    return RerankBackend(RerankSpec(str(tiny("bert", tmp_path_factory.mktemp("bert"))), properties=F32))


@pytest.mark.parametrize("name", ["bert", "bert-two", "xlm-roberta"])
def test_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    backend = RerankBackend(RerankSpec(str(tiny(name, tmp_path)), properties=F32))
    for known in answers(name):
        values = known["values"]
        expected = values[0] if len(values) == 1 else values[1] - values[0]
        _, (raw,) = rank(backend, known["query"], [known["document"]], raw=True)
        assert raw == pytest.approx(expected, abs=2e-5), known
        _, (score,) = rank(backend, known["query"], [known["document"]])
        assert score == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-5)


def test_a_causal_model_answers_yes_or_no_as_in_transformers() -> None:
    """The prompt of Qwen3-Reranker, and the logits of its two answers; rows of a batch have other lengths."""
    backend = RerankBackend(RerankSpec(str(VECTORS / "qwen3"), properties=F32))
    assert backend.facts.form == "causal"
    known = answers("qwen3")
    for instruction in {k["instruction"] for k in known}:
        for query in {k["query"] for k in known}:
            some = [k for k in known if (k["instruction"], k["query"]) == (instruction, query)]
            expected = np.array([k["values"][1] - k["values"][0] for k in some])
            documents = [k["document"] for k in some]
            _, raw = rank(backend, query, [*documents, "oil " * 30], instruction=instruction, raw=True)
            assert raw[:-1] == pytest.approx(expected, abs=1e-4)
            _, scores = rank(backend, query, documents, instruction=instruction)
            assert scores == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-4)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_the_form_from_the_files_equals_the_tokenizer_s_own(name: str, tmp_path: Path) -> None:
    """The files decide where a tokenizer has no template for pairs, as those that OVMS exports."""
    tiny(name, tmp_path)
    own = pair_form(tmp_path, open_tokenizer(tmp_path), name)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    bare = open_tokenizer(tmp_path)
    assert pair_form(tmp_path, bare, name) == own
    assert own == (
        PairForm((2,), (3,), (3,), True) if name == "bert" else PairForm((0,), (2, 2), (2,), False)
    )
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="has no .*_token"):
        pair_form(tmp_path, bare, name)


def test_documents_of_requests_at_once_keep_their_scores(bert: RerankBackend) -> None:
    documents = [
        "left the harbour",
        "of a diesel engine",
        "she plays the cello before sunrise",
        "",
        "oil",
    ] * 5
    expected = np.concatenate([rank(bert, "the ship", [d])[1] for d in documents])
    wrong: list[int] = []

    def client(number: int) -> None:
        for _ in range(5):
            _, scores = rank(bert, "the ship", documents[number:])
            if np.abs(scores - expected[number:]).max() > 1e-5:
                wrong.append(number)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_best_piece_of_a_long_document_counts(bert: RerankBackend) -> None:
    words = ["oil"] * 100 + ["left", "the", "harbour"]
    room = bert.limit - 3 - 2  # three special tokens and the query
    pieces = [" ".join(words[i : i + room]) for i in range(0, len(words), room)]
    answer, (whole,) = rank(bert, "the ship", [" ".join(words)])
    assert answer.chunks == len(pieces) == 2
    assert whole == pytest.approx(max(rank(bert, "the ship", pieces)[1]), abs=1e-6)
    answer, (first,) = rank(bert, "the ship", [" ".join(words)], max_chunks_per_document=1)
    assert (answer.chunks, answer.documents_cut) == (1, 1)
    assert first == pytest.approx(rank(bert, "the ship", pieces[:1])[1][0], abs=1e-6)
    answer, (short,) = rank(bert, "the ship", [" ".join(words)], max_tokens_per_document=4)
    assert answer.documents_cut == 1
    assert short == pytest.approx(rank(bert, "the ship", ["oil oil oil oil"])[1][0], abs=1e-6)


def test_limits_are_named(bert: RerankBackend, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="after chunking limit: 3; actual: 4"):
        rank(bert, "the ship", ["oil " * 100, "oil " * 100], max_chunks=3)
    answer, _ = rank(bert, "ship " * 60, ["oil"])
    assert answer.query_cut
    assert answer.tokens == bert.limit // 2 + 3 + 1
    with pytest.raises(LoadError, match="a pair of 6 tokens has no room"):
        RerankBackend(RerankSpec(bert.directory.as_posix(), max_position_embeddings=6))


def test_joined_texts_are_scored_without_special_tokens(tmp_path: Path, bert: RerankBackend) -> None:
    """`add_bos_token: false`: the client has written the template itself, as OVMS documents for Qwen3."""
    tiny("bert", tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
    backend = RerankBackend(RerankSpec(str(tmp_path), properties=F32))
    answer, _ = rank(backend, "the ship ", ["left the harbour"])
    assert (answer.tokens, backend.facts.form) == (5, "joined")
    with pytest.raises(ContextLengthExceeded, match=r"documents\[1\]: 72 tokens"):
        rank(backend, "the ship ", ["oil", "oil " * 70])


def test_a_model_without_logits_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"expected an output logits \[rows, 1 or 2\], got last_hidden_state"):
        RerankBackend(RerankSpec(str(tiny("mpnet", tmp_path))))
    assert VECTORS.is_dir()

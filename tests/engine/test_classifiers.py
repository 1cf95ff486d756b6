"""Classifiers and scores of pairs on the real runtime, against transformers' pipeline and the library
tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer

from ovserve.engine.protocol.call_backend import Invocation
from ovserve.engine.protocol.messages import Call
from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import (
    CLASSIFY,
    EMBED,
    SCORE,
    SEPARATOR,
    ClassificationSpec,
    ClassifyAnswer,
    ClassifyArguments,
    EmbedArguments,
    EmbeddingSpec,
    RerankSpec,
    ScoreAnswer,
    ScoreArguments,
)
from ovserve.kinds.encoders.worker.embed import ClassificationBackend, EmbeddingBackend
from ovserve.kinds.encoders.worker.rerank import RerankBackend, longest_first
from tests.encoders import VECTORS, answers, tiny

F32 = '{"INFERENCE_PRECISION_HINT": "f32"}'
NAMES = ("text_1", "text_2")
LABELS = ("harbour", "engine", "Café ☕")


def call(backend: Any, method: str, arguments: Any, blob: Any) -> Any:
    (result,) = backend.call(
        Invocation(Call(1, method, msgspec.msgpack.encode(arguments), (msgspec.msgpack.encode(blob),)))
    )
    return result


def classify(backend: Any, inputs: list[Any], **more: Any) -> tuple[ClassifyAnswer, np.ndarray]:
    result = call(backend, CLASSIFY, ClassifyArguments(**more), inputs)
    rows = bytes(result.blobs[0]).split(SEPARATOR)
    return result.value, np.array([orjson.loads(row) for row in rows], np.float32)


def score(backend: Any, first: list[str], second: list[str], **more: Any) -> tuple[ScoreAnswer, np.ndarray]:
    result = call(backend, SCORE, ScoreArguments(NAMES, **more), (first, second))
    return result.value, np.frombuffer(bytes(result.blobs[0]), "<f4")


def classifier(name: str, directory: Path, **config: Any) -> ClassificationBackend:
    return ClassificationBackend(ClassificationSpec(str(tiny(name, directory, **config)), properties=F32))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> ClassificationBackend:
    return classifier("bert-labels", tmp_path_factory.mktemp("labels"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> RerankBackend:
    return RerankBackend(RerankSpec(str(tiny("bert", tmp_path_factory.mktemp("bert"))), properties=F32))


@pytest.mark.parametrize("name", ["bert-labels", "roberta-labels"])
def test_values_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """A softmax over labels of which one is right, and a sigmoid of each of a multi_label_classification."""
    backend = classifier(name, tmp_path)
    known = answers(name)
    texts = [k["text"] for k in known]
    expected = np.array([k["scores"] for k in known])
    answer, probabilities = classify(backend, texts)
    assert probabilities == pytest.approx(expected, abs=1e-5)
    assert answer.best == expected.argmax(axis=1).tolist()
    _, logits = classify(backend, texts, raw=True)
    assert logits == pytest.approx(np.array([k["logits"] for k in known]), abs=2e-5)
    for text, row in zip(texts, probabilities, strict=True):  # each alone has the same
        assert classify(backend, [text])[1][0] == pytest.approx(row, abs=1e-5)


def test_ids_and_texts_without_special_tokens(labels: ClassificationBackend) -> None:
    tokenizer = Tokenizer.from_file(str(VECTORS / "bert-labels/tokenizer.json"))
    for special in (True, False):
        ids = tokenizer.encode("left the harbour", add_special_tokens=special).ids
        answer, by_text = classify(labels, ["left the harbour"], special=special)
        assert answer.tokens == len(ids)
        assert classify(labels, [ids], tokens=True)[1] == pytest.approx(by_text, abs=1e-6)
    with pytest.raises(InvalidArgument, match=r"input\[0\]: has no tokens"):
        classify(labels, [""], special=False)
    with pytest.raises(InvalidArgument, match=r"input\[1\]: token id 45 is not in"):
        classify(labels, [[1], [45]], tokens=True)


def test_long_inputs_are_refused_or_cut(labels: ClassificationBackend) -> None:
    long = "oil " * 80
    with pytest.raises(
        ContextLengthExceeded, match=r"input\[1\] has 82 tokens, and this model reads at most 66"
    ):
        classify(labels, ["oil", long])
    answer, cut = classify(labels, [long, "oil"], truncate=5)
    assert (answer.truncated, answer.tokens) == (1, 5 + 3)
    assert cut[0] == pytest.approx(classify(labels, ["oil oil oil"])[1][0], abs=1e-6)
    assert classify(labels, [long], truncate=0)[0].tokens == 66


def test_labels_of_the_files(tmp_path: Path, labels: ClassificationBackend) -> None:
    assert labels.facts.labels == LABELS
    plain = classifier("bert-two", tmp_path / "two")  # transformers leaves out the names it gives by itself
    assert plain.facts.labels == ("LABEL_0", "LABEL_1")
    lone = classifier("bert", tmp_path / "one")
    _, probabilities = classify(lone, ["oil"])
    assert probabilities == pytest.approx(1 / (1 + np.exp(-classify(lone, ["oil"], raw=True)[1])), abs=1e-6)
    regression = classifier("bert", tmp_path / "regression", problem_type="regression")
    assert classify(regression, ["oil"])[1] == pytest.approx(classify(lone, ["oil"], raw=True)[1], abs=1e-6)
    with pytest.raises(LoadError, match="id2label: expected 0 to 2, as the model answers, got 0, 1"):
        classifier("bert-labels", tmp_path / "few", id2label={"0": "a", "1": "b"})
    with pytest.raises(LoadError, match="id2label: expected 0 to 2, as the model answers, got 1, 2, 3"):
        classifier("bert-labels", tmp_path / "from one", id2label={"1": "a", "2": "b", "3": "c"})
    with pytest.raises(LoadError, match="problem_type: expected one of single_label_classification"):
        classifier("bert-labels", tmp_path / "odd", problem_type="ranking")
    with pytest.raises(LoadError, match=r"\[rows, labels\], got last_hidden_state"):
        classifier("mpnet", tmp_path / "none")
    with pytest.raises(LoadError, match=r"\[rows, 1 or 2\], got logits \[\?,3\]; --task classification"):
        RerankBackend(RerankSpec(str(labels.directory)))


@pytest.mark.parametrize("name", ["bert", "bert-two", "xlm-roberta"])
def test_scores_of_pairs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    backend = RerankBackend(RerankSpec(str(tiny(name, tmp_path)), properties=F32))
    known = answers(name)
    first, second = [k["query"] for k in known], [k["document"] for k in known]
    values = [k["values"] for k in known]
    logits = np.array([v[0] if len(v) == 1 else v[1] - v[0] for v in values])
    _, raw = score(backend, first, second, raw=True)
    assert raw == pytest.approx(logits, abs=2e-5)
    _, scores = score(backend, first, second)
    assert scores == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-5)
    _, of_one = score(backend, first[:1], second)
    assert of_one[0] == pytest.approx(scores[0], abs=1e-6)
    assert of_one == pytest.approx(score(backend, first[:1] * len(second), second)[1], abs=1e-6)


def test_a_causal_model_scores_pairs_as_in_transformers() -> None:
    backend = RerankBackend(RerankSpec(str(VECTORS / "qwen3"), properties=F32))
    known = answers("qwen3")
    for instruction in {k["instruction"] for k in known}:
        some = [k for k in known if k["instruction"] == instruction]
        expected = np.array([k["values"][1] - k["values"][0] for k in some])
        first, second = [k["query"] for k in some], [k["document"] for k in some]
        _, raw = score(backend, first, second, instruction=instruction, raw=True)
        assert raw == pytest.approx(expected, abs=1e-4)
    with pytest.raises(
        ContextLengthExceeded, match=r"text_1\[0\]: \d+ tokens with the template leave no room"
    ):
        score(backend, ["oil " * 300], ["oil"], truncate=0)
    answer, _ = score(backend, ["oil"], ["oil " * 300], truncate=0)
    assert (answer.tokens, answer.truncated) == (256, 1)


def test_an_identity_of_sentence_transformers_is_no_sigmoid(tmp_path: Path, bert: RerankBackend) -> None:
    """ms-marco's cross-encoders score with logits, there and in vLLM."""
    pair = (["the ship"], ["left the harbour"])
    _, raw = score(bert, *pair, raw=True)
    for name, config in (
        ("older", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
        ("newer", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
    ):
        made = RerankBackend(RerankSpec(str(tiny("bert", tmp_path / name, **config)), properties=F32))
        assert score(made, *pair)[1] == pytest.approx(raw, abs=1e-6)


def test_pairs_are_cut_as_tokenizers_cut_them(bert: RerankBackend) -> None:
    tokenizer = Tokenizer.from_file(str(VECTORS / "bert/tokenizer.json"))
    for first in (0, 1, 5, 20, 21, 40):
        for second in (0, 1, 4, 20, 21, 50):
            for most in (4, 5, 8, 9, 30, 66):
                tokenizer.enable_truncation(most)
                encoded = tokenizer.encode("oil " * first, "ship " * second)
                oil, ship = (encoded.tokens.count(word) for word in ("oil", "ship"))
                assert longest_first(first, second, most - 3) == (oil, ship), (first, second, most)
    answer, (cut,) = score(bert, ["oil " * 20], ["ship " * 50], truncate=9)
    assert (answer.tokens, answer.truncated) == (9, 1)
    assert cut == pytest.approx(score(bert, ["oil oil oil"], ["ship ship ship"])[1][0], abs=1e-6)
    with pytest.raises(InvalidArgument, match="truncate_prompt_tokens: expected more than the 3"):
        score(bert, ["oil"], ["ship"], truncate=3)


def test_limits_of_pairs(bert: RerankBackend, tmp_path: Path) -> None:
    with pytest.raises(
        ContextLengthExceeded, match=r"text_2\[1\]: 73 tokens with text_1\[0\], .* at most 66"
    ):
        score(bert, ["oil " * 20], ["oil", "ship " * 50])
    answer, (whole,) = score(bert, ["oil " * 20], ["ship " * 50], max_first=1, max_second=2)
    assert (answer.tokens, answer.truncated) == (6, 1)
    assert whole == pytest.approx(score(bert, ["oil"], ["ship ship"])[1][0], abs=1e-6)
    assert score(bert, ["oil " * 20], ["ship " * 50], truncate=0)[0].tokens == 66
    assert score(bert, [""], ["", "ship"])[0].tokens == 3 + 4
    tiny("bert", tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
    joined = RerankBackend(RerankSpec(str(tmp_path), properties=F32))
    assert score(joined, ["the ship "], ["left the harbour"])[0].tokens == 5
    assert score(joined, ["oil "], ["oil " * 70], truncate=7)[0].tokens == 7
    with pytest.raises(ContextLengthExceeded, match=r"text_2\[0\]: 71 tokens with text_1, of at most 66"):
        score(joined, ["oil "], ["oil " * 70])


def test_embeddings_score_by_the_cosine_of_their_vectors(tmp_path: Path) -> None:
    spec = EmbeddingSpec(str(tiny("mpnet", tmp_path)), properties=F32, normalize=False)
    backend = EmbeddingBackend(spec)
    first, second = ["the ship", "oil"], ["left the harbour", "prices of diesel"]
    made = call(backend, EMBED, EmbedArguments(), [*first, *second])
    vectors = np.array([orjson.loads(row) for row in bytes(made.blobs[0]).split(SEPARATOR)])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    answer, scores = score(backend, first, second)
    assert scores == pytest.approx((units[:2] * units[2:]).sum(axis=1), abs=1e-5)
    assert answer.tokens == made.value.tokens
    assert score(backend, first[:1], second)[1] == pytest.approx(units[2:] @ units[0], abs=1e-5)
    long = "oil " * 100
    with pytest.raises(ContextLengthExceeded, match=r"text_2\[1\] has 102 tokens"):
        score(backend, ["oil"], ["oil", long])
    answer, cut = score(backend, ["oil"], [long], truncate=4)
    assert (answer.tokens, answer.truncated) == (3 + 4, 1)
    assert score(backend, ["oil"], [long], max_second=2)[1] == pytest.approx(cut, abs=1e-6)

"""The engines of embeddings and of classifiers: texts or token ids to vectors, or to a value per label, as
the JSON that the server sends.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ovserve.engine.protocol.call_backend import Deliver, Invocation, Outcome, Result
from ovserve.errors import Internal, InvalidArgument, LoadError, OvserveError
from ovserve.kinds.encoders.spec import (
    BASE64,
    CLASSIFY,
    EMBED,
    FLOAT,
    SCORE,
    SEPARATOR,
    ClassificationFacts,
    ClassificationSpec,
    ClassifyAnswer,
    ClassifyArguments,
    EmbedAnswer,
    EmbedArguments,
    EmbeddingFacts,
    EmbeddingSpec,
    Encoding,
    ScoreAnswer,
    ScoreArguments,
)
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.encoder_backend import EncoderBackend, check_lengths, decoded, sigmoid
from ovserve.kinds.encoders.worker.model import Row
from ovserve.kinds.encoders.worker.pool import Job

SMALL_BYTES = 4096  # of inputs that are tokenised while other calls are not read: 0.3 ms


class _Asked(NamedTuple):
    """The arguments of a call, ready to run."""

    rows: list[Row]
    truncated: int
    dimensions: int | None
    encoding: Encoding


class EmbeddingBackend(EncoderBackend):
    noun = "an engine of embeddings"

    def __init__(self, spec: EmbeddingSpec) -> None:
        super().__init__(spec.model_path)
        files = self.files
        pooling = spec.pooling or files.pooling
        if files.pooling_note and not spec.pooling:
            print(f"pooling is CLS: {files.pooling_note}")  # noqa: T201  stdout is this process's log
        model = models.pool(models.read(self.directory), pooling, spec.normalize)
        self._begun: list[Job] = []  # read, and not submitted yet
        self.dimensions = self.start_texts(model, spec)
        self.facts = EmbeddingFacts(
            **self.common_facts(),
            max_length=self.limit,
            max_seq_length=self.sequence_length,
            dimensions=self.dimensions,
            pooling=pooling,
            normalized=spec.normalize,
            matryoshka=files.matryoshka,
            prompts=files.prompts,
            default_prompt=files.default_prompt,
        )

    def methods(self) -> dict[str, Callable[[Invocation], Any]]:
        return {EMBED: self._embed, SCORE: self._score}

    def _embed(self, invocation: Invocation) -> Result:
        request = self._decode(invocation)
        job = Job(request.rows)
        self.wait(invocation, job)
        return self._result(request, job)

    def begin(self, invocation: Invocation, deliver: Deliver) -> bool:
        """Begin a call with little text here: two switches between threads cost as much as the rest."""
        if invocation.method != EMBED or len(invocation.blobs[0]) > SMALL_BYTES:
            return False
        request = self._decode(invocation)

        def then(job: Job) -> tuple[Invocation, Outcome]:
            try:
                return invocation, self._result(request, job)
            except OvserveError as error:
                return invocation, error

        self.runner.deliver = deliver
        self._begun.append(Job(request.rows, then=then, arrived=invocation.arrived))
        return True

    def began(self) -> None:
        begun, self._begun = self._begun, []
        self.runner.run(*begun)

    def _decode(self, invocation: Invocation) -> _Asked:
        arguments = invocation.arguments(EmbedArguments)
        dimensions = self._dimensions(arguments.dimensions)
        return _Asked(*self._rows(arguments, invocation), dimensions, arguments.encoding)

    def _result(self, request: _Asked, job: Job) -> Result:
        """Raises the job's error."""
        answer = EmbedAnswer(sum(map(len, request.rows)), request.truncated, self.runner.counts())
        values = cut(self.results(job), request.dimensions)
        return Result(answer, (encode_vectors(values, request.encoding),), last=True)

    def _score(self, invocation: Invocation) -> Result:
        """The cosine of each pair of texts, as of the vectors that EMBED gives of them."""
        arguments = invocation.arguments(ScoreArguments)
        texts = decoded(invocation.blobs[0], tuple[list[str], list[str]])
        rows: list[Row] = []
        truncated = 0
        for some, name, most in zip(
            texts, arguments.names, (arguments.max_first, arguments.max_second), strict=True
        ):
            fitting, cut_rows = self._texts(some, name, most, arguments.truncate)
            rows += fitting
            truncated += cut_rows
        values = self.values(invocation, Job(rows))
        first, second = values[: len(texts[0])], values[len(texts[0]) :]
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        scores = (first * second).sum(axis=1) / np.maximum(norms, models.SMALLEST_NORM)
        if not np.isfinite(scores).all():
            raise Internal("the model answered with a vector that is not finite")
        answer = ScoreAnswer(sum(map(len, rows)), truncated, self.runner.counts())
        return Result(answer, (scores.astype("<f4").tobytes(),))

    def _texts(
        self, texts: list[str], name: str, most: int | None, truncate: int | None
    ) -> tuple[list[Row], int]:
        """Return the ids of each text within the limit and within `most` of its own tokens, and how many were
        cut."""
        prompt = self.files.prompts.get(self.files.default_prompt, "")
        whole = self.tokenized([prompt + text for text in texts], self.limit, name)
        rows = whole if most is None else [self.framed.fit(row, most + self.framed.special) for row in whole]
        if truncate is None:
            check_lengths(rows, self.limit, name)
        longest = min(truncate or self.sequence_length, self.limit)
        fitting = [self.framed.fit(row, longest) for row in rows]
        return fitting, sum(len(a) < len(b) for a, b in zip(fitting, whole, strict=True))

    def _dimensions(self, dimensions: int | None) -> int | None:
        if dimensions is None or dimensions == self.dimensions:
            return None
        sizes = self.files.matryoshka
        if dimensions > self.dimensions or (sizes and dimensions not in sizes):
            allowed = f"one of {', '.join(map(str, sizes))}" if sizes else f"1 to {self.dimensions}"
            raise InvalidArgument.at("dimensions", f"expected {allowed}, got {dimensions}")
        return dimensions

    def _rows(self, arguments: EmbedArguments, invocation: Invocation) -> tuple[list[Row], int]:
        """Return the ids of each input within the limit, and how many were cut."""
        own = self.sequence_length
        most = min(arguments.truncate or own, self.limit)
        longest = own if arguments.whole else self.limit
        rows = self.input_rows(invocation.blobs[0], tokens=arguments.tokens, prompt=arguments.prompt)
        if arguments.truncate is None:
            check_lengths(rows, longest)
        return self.fitting(rows, most)


def cut(values: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """Return the first `dimensions` of each vector, of unit length again."""
    if dimensions is None:
        return values
    leading = np.ascontiguousarray(values[:, :dimensions])
    norms = np.linalg.norm(leading, axis=1, keepdims=True)
    normalized: NDArray[np.float32] = (leading / np.maximum(norms, models.SMALLEST_NORM)).astype(np.float32)
    return normalized


def encode_vectors(values: NDArray[np.float32], encoding: str) -> bytes:
    """Return the vectors as JSON values, divided by SEPARATOR. Raises Internal for one that is not finite."""
    if not np.isfinite(values).all():
        raise Internal("the model answered with a vector that is not finite")
    if encoding == BASE64:
        little = values.astype("<f4", copy=False)
        return SEPARATOR.join(b'"' + base64.b64encode(row.data) + b'"' for row in little)
    return SEPARATOR.join(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in values)


REGRESSION, MULTI_LABEL = "regression", "multi_label_classification"
PROBLEM_TYPES = ("", "single_label_classification", MULTI_LABEL, REGRESSION)  # transformers' names


class ClassificationBackend(EncoderBackend):
    noun = "a classifier"

    def __init__(self, spec: ClassificationSpec) -> None:
        super().__init__(spec.model_path)
        files = self.files
        config = str(self.directory / "config.json")
        if files.problem_type not in PROBLEM_TYPES:
            choices = ", ".join(filter(None, PROBLEM_TYPES))
            raise LoadError(
                f"problem_type: expected one of {choices}, got {files.problem_type!r}", file=config
            )
        model = models.logits(models.read(self.directory))
        count = self.start_texts(model, spec)
        numbers = [str(number) for number in range(count)]
        if files.labels and files.labels.keys() != set(numbers):
            names = ", ".join(files.labels)
            raise LoadError(
                f"id2label: expected 0 to {count - 1}, as the model answers, got {names}", file=config
            )
        labels = tuple(files.labels.get(number, f"LABEL_{number}") for number in numbers)
        self.facts = ClassificationFacts(
            **self.common_facts(), max_length=self.limit, labels=labels, problem_type=files.problem_type
        )

    def methods(self) -> dict[str, Callable[[Invocation], Any]]:
        return {CLASSIFY: self._classify}

    def _classify(self, invocation: Invocation) -> Result:
        arguments = invocation.arguments(ClassifyArguments)
        rows = self.input_rows(invocation.blobs[0], tokens=arguments.tokens, special=arguments.special)
        if arguments.truncate is None:
            check_lengths(rows, self.limit)
        rows, truncated = self.fitting(rows, min(arguments.truncate or self.sequence_length, self.limit))
        logits = self.values(invocation, Job(rows))
        values = logits if arguments.raw else activated(logits, self.files.problem_type)
        answer = ClassifyAnswer(
            tokens=sum(map(len, rows)),
            best=values.argmax(axis=1).tolist(),
            truncated=truncated,
            batches=self.runner.counts(),
        )
        return Result(answer, (encode_vectors(values, FLOAT),))


def activated(logits: NDArray[np.float32], problem_type: str) -> NDArray[np.float32]:
    """Return [rows, labels]: a softmax, or sigmoids where labels exclude none or one is alone; logits of a
    regression."""
    if problem_type == REGRESSION:
        return logits
    if problem_type == MULTI_LABEL or logits.shape[1] == 1:
        return sigmoid(logits)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return softmax

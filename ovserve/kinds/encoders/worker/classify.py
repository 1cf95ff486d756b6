"""The engine of classifiers: texts or token ids to a value per label, as the JSON that the server sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.host.cpu import properties_of
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.kinds.encoders.spec import (
    CLASSIFY,
    FLOAT,
    ClassificationFacts,
    ClassificationSpec,
    ClassifyAnswer,
    ClassifyArguments,
)
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.embed import encode_vectors
from ovserve.kinds.encoders.worker.encoder_backend import (
    EncoderBackend,
    Left,
    check_lengths,
    sigmoid,
)
from ovserve.kinds.encoders.worker.pool import Job
from ovserve.kinds.encoders.worker.runner import Runner

REGRESSION, MULTI_LABEL = "regression", "multi_label_classification"
PROBLEM_TYPES = ("", "single_label_classification", MULTI_LABEL, REGRESSION)  # transformers' names


class ClassificationBackend(EncoderBackend):
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
        properties = properties_of(spec.properties, spec.device)
        self.runner = Runner(model, spec.device, properties, files.pad_token_id)
        self.limit = min(spec.max_length or files.max_length, files.max_length)
        self.sequence_length = min(files.sequence_length, self.limit)
        probe = Job([np.array(self.framed.before + self.framed.after or (0,), np.int32)])
        self.runner.submit(probe)
        probe.done.wait()
        if probe.results is None:
            raise Internal(str(probe.error))
        count = int(probe.results.shape[1])
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

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if (tokens := self.token_call(invocation)) is not None:
            yield from tokens
            return
        if invocation.method != CLASSIFY:
            raise InvalidArgument(f"a classifier has no method {invocation.method!r}")
        arguments = invocation.arguments(ClassifyArguments)
        rows = self.input_rows(invocation.blobs[0], tokens=arguments.tokens, special=arguments.special)
        if arguments.truncate is None:
            check_lengths(rows, self.limit)
        rows, truncated = self.fitting(rows, min(arguments.truncate or self.sequence_length, self.limit))
        try:
            logits = self.values(invocation, Job(rows))
        except Left:
            return
        values = logits if arguments.raw else activated(logits, self.files.problem_type)
        answer = ClassifyAnswer(
            tokens=sum(map(len, rows)),
            best=values.argmax(axis=1).tolist(),
            truncated=truncated,
            batches=self.runner.counts(),
        )
        yield Result(answer, (encode_vectors(values, FLOAT),))


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

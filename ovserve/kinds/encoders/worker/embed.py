"""The engine of embeddings: texts or token ids to vectors, as the JSON that the server sends."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ovserve.engine.protocol.call_backend import Deliver, Invocation, Outcome, Result
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument, OvserveError
from ovserve.kinds.encoders.spec import (
    BASE64,
    EMBED,
    SEPARATOR,
    EmbedAnswer,
    EmbedArguments,
    EmbeddingFacts,
    EmbeddingSpec,
    Encoding,
)
from ovserve.kinds.encoders.worker import model as models
from ovserve.kinds.encoders.worker.encoder_backend import EncoderBackend, Left, decoded
from ovserve.kinds.encoders.worker.pool import Job
from ovserve.kinds.encoders.worker.runner import Runner
from ovserve.kinds.encoders.worker.tokens import Row, check_ids

SMALL_BYTES = 4096  # of inputs that are tokenised while other calls are not read: 0.3 ms


class _Asked(NamedTuple):
    """The arguments of a call, ready to run."""

    rows: list[Row]
    truncated: int
    dimensions: int | None
    encoding: Encoding


class EmbeddingBackend(EncoderBackend):
    def __init__(self, spec: EmbeddingSpec) -> None:
        super().__init__(spec.model_path)
        files = self.files
        pooling = spec.pooling or files.pooling
        if files.pooling_note and not spec.pooling:
            print(f"pooling is CLS: {files.pooling_note}")  # noqa: T201  stdout is this process's log
        model = models.pool(models.read(self.directory), pooling, spec.normalize)
        properties = models.properties_of(spec.properties, spec.device)
        self.runner = Runner(model, spec.device, properties, files.pad_token_id)
        self._begun: list[Job] = []  # read, and not submitted yet
        self.limit = min(spec.max_length or files.max_length, files.max_length)
        self.sequence_length = min(files.sequence_length, self.limit)
        probe = Job([np.array(self.framed.before + self.framed.after or (0,), np.int32)])
        self.runner.submit(probe)
        probe.done.wait()
        if probe.results is None:
            raise Internal(str(probe.error))
        self.dimensions = int(probe.results.shape[1])
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

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if (tokens := self.token_call(invocation)) is not None:
            yield from tokens
            return
        if invocation.method != EMBED:
            raise InvalidArgument(f"an engine of embeddings has no method {invocation.method!r}")
        asked = self._asked(invocation)
        job = Job(asked.rows)
        try:
            self.wait(invocation, job)
        except Left:
            return
        yield self._result(asked, job)

    def begin(self, invocation: Invocation, deliver: Deliver) -> bool:
        """Begin a call with little text here: two switches between threads cost as much as the rest."""
        if invocation.method != EMBED or len(invocation.blobs[0]) > SMALL_BYTES:
            return False
        asked = self._asked(invocation)

        def then(job: Job) -> tuple[Invocation, Outcome]:
            try:
                return invocation, self._result(asked, job)
            except OvserveError as error:
                return invocation, error

        self.runner.deliver = deliver
        self._begun.append(Job(asked.rows, then=then, arrived=invocation.arrived))
        return True

    def began(self) -> None:
        begun, self._begun = self._begun, []
        self.runner.run(*begun)

    def _asked(self, invocation: Invocation) -> _Asked:
        asked = invocation.arguments(EmbedArguments)
        dimensions = self._dimensions(asked.dimensions)
        return _Asked(*self._rows(asked, invocation), dimensions, asked.encoding)

    def _result(self, asked: _Asked, job: Job) -> Result:
        """Raises the job's error."""
        answer = EmbedAnswer(sum(map(len, asked.rows)), asked.truncated, self.runner.counts())
        values = cut(self.results(job), asked.dimensions)
        return Result(answer, (written(values, asked.encoding),), last=True)

    def _dimensions(self, wanted: int | None) -> int | None:
        if wanted is None or wanted == self.dimensions:
            return None
        sizes = self.files.matryoshka
        if wanted > self.dimensions or (sizes and wanted not in sizes):
            known = f"one of {', '.join(map(str, sizes))}" if sizes else f"1 to {self.dimensions}"
            raise InvalidArgument(f"dimensions: expected {known}, got {wanted}", param="dimensions")
        return wanted

    def _rows(self, asked: EmbedArguments, invocation: Invocation) -> tuple[list[Row], int]:
        """Return the ids of each input within the limit, and how many were cut."""
        own = self.sequence_length
        most = min(asked.truncate or own, self.limit)
        longest = own if asked.whole else self.limit
        if asked.tokens:
            given = decoded(invocation.blobs[0], list[list[int]])
            rows: list[Row] = [np.array(ids, np.int64) for ids in given]
            check_ids(rows, self.vocab_size, "input")
        else:
            texts = decoded(invocation.blobs[0], list[str])
            rows = self.tokenized(
                [asked.prompt + t for t in texts] if asked.prompt else texts, self.limit, "input"
            )
        for i, row in enumerate(rows):
            if not row.size:
                raise InvalidArgument(f"input[{i}]: has no tokens", param=f"input[{i}]")
            if asked.truncate is None and len(row) > longest:
                raise ContextLengthExceeded(
                    f"Input length {len(row)} longer than allowed {longest}: input[{i}] has {len(row)} "
                    f"tokens, and this model reads at most {longest}",
                    param=f"input[{i}]",
                )
        fitting = [self.framed.fit(row, most) for row in rows]
        return fitting, sum(len(a) < len(b) for a, b in zip(fitting, rows, strict=True))


def cut(values: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """Return the first `dimensions` of each vector, of unit length again."""
    if dimensions is None:
        return values
    kept = np.ascontiguousarray(values[:, :dimensions])
    norms = np.linalg.norm(kept, axis=1, keepdims=True)
    made: NDArray[np.float32] = (kept / np.maximum(norms, models.SMALLEST_NORM)).astype(np.float32)
    return made


def written(values: NDArray[np.float32], encoding: str) -> bytes:
    """Return the vectors as JSON values, divided by SEPARATOR. Raises Internal for one that is not finite."""
    if not np.isfinite(values).all():
        raise Internal("the model answered with a vector that is not finite")
    if encoding == BASE64:
        little = values.astype("<f4", copy=False)
        return SEPARATOR.join(b'"' + base64.b64encode(row.data) + b'"' for row in little)
    return SEPARATOR.join(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in values)

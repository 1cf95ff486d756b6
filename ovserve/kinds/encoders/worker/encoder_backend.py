"""Shared by embeddings, rerankers and classifiers: model files, tokenizer, runner, and calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ovserve.engine.host.cpu import properties_of
from ovserve.engine.protocol.call_backend import Invocation
from ovserve.engine.protocol.specs import Spec
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument
from ovserve.kinds.encoders.spec import (
    DETOKENIZE,
    TOKENIZE,
    ClassificationSpec,
    DetokenizeArguments,
    EmbeddingSpec,
    TokenizeArguments,
    read_encoder_files,
)
from ovserve.kinds.encoders.worker.model import Framed, Row, check_ids, open_tokenizer
from ovserve.kinds.encoders.worker.pool import Job
from ovserve.kinds.encoders.worker.runner import Runner
from ovserve.llm.request import shown_token
from ovserve.llm.token_bytes import token_bytes

MAX_CALLS = 64  # at a time: each waits on a thread of its own while streams run its rows
CANCEL_POLL_SECONDS = 0.1  # seconds between two looks at whether a caller has left
# A text longer than this is not tokenised: about 128 characters for each token that may come of it, and at
# least 64 K, because spaces and unknown words make few tokens.
CHARACTERS_PER_TOKEN, LEAST_CHARACTERS = 128, 1 << 16


class Left(Exception):
    """The caller has left; its call ends in silence."""


class EncoderBackend:
    """The part of a `CallBackend` that any encoder has."""

    noun: ClassVar[str]  # in errors
    runner: Runner
    limit: int  # tokens of a row
    sequence_length: int  # tokens of a row that is cut

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.files = read_encoder_files(self.directory)
        self.tokenizer = open_tokenizer(self.directory)
        self.framed = Framed(self.tokenizer)
        self.vocab_size = self.files.vocab_size or self.tokenizer.vocab_size

    def start(self, model: Any, spec: Spec, probe: Job) -> NDArray[np.float32]:
        """Compile the model, and return its answer to a first job. Raises LoadError, Internal."""
        properties = properties_of(spec.properties, spec.device)
        self.runner = Runner(model, spec.device, properties, self.files.pad_token_id)
        self.runner.submit(probe)
        probe.done.wait()
        if probe.results is None:
            raise Internal(str(probe.error))
        return probe.results

    def start_texts(self, model: Any, spec: EmbeddingSpec | ClassificationSpec) -> int:
        """Compile a model whose rows are single texts; return the width of its answer."""
        self.limit = min(spec.max_length or self.files.max_length, self.files.max_length)
        self.sequence_length = min(self.files.sequence_length, self.limit)
        row = np.array(self.framed.before + self.framed.after or (0,), np.int32)
        return int(self.start(model, spec, Job([row])).shape[1])

    def common_facts(self) -> dict[str, Any]:
        import openvino

        before, after = self.framed.before[:1], self.framed.after[-1:]
        return {
            "engine": f"openvino {openvino.__version__.partition('-')[0]}",
            "max_calls": MAX_CALLS,
            "architecture": self.files.architecture,
            "vocab_size": self.vocab_size,
            "pad_token_id": self.files.pad_token_id,
            "bos_token": self.tokenizer.token(before[0]) if before else "",
            "eos_token": self.tokenizer.token(after[0]) if after else "",
        }

    def methods(self) -> dict[str, Callable[[Invocation], Any]]:
        """Return the methods that need an inference, by name."""
        raise NotImplementedError

    def call(self, invocation: Invocation) -> Iterator[Any]:
        """Yield the one item of an answer; nothing once the caller has left."""
        methods = {TOKENIZE: self._tokenize, DETOKENIZE: self._detokenize, **self.methods()}
        if invocation.method not in methods:
            raise InvalidArgument(f"{self.noun} has no method {invocation.method!r}")
        with suppress(Left):
            yield methods[invocation.method](invocation)

    def _tokenize(self, invocation: Invocation) -> list[list[int]]:
        arguments = invocation.arguments(TokenizeArguments)
        rows = self.tokenizer.encode(arguments.texts, arguments.add_special_tokens)
        return [row.tolist() for row in rows]

    def _detokenize(self, invocation: Invocation) -> list[str]:
        arguments = invocation.arguments(DetokenizeArguments)
        for row in (np.array(row, np.int64) for row in arguments.rows):
            if row.size and (row.min() < 0 or row.max() >= self.vocab_size):
                raise InvalidArgument.at(
                    "tokens", f"expected ids from 0 to {self.vocab_size - 1}, got {int(row.max())}"
                )
        texts = self.tokenizer.decode(arguments.rows, arguments.skip_special_tokens)
        return self._token_texts(arguments.rows, texts) if arguments.escaped else texts

    def _token_texts(self, rows: list[list[int]], texts: list[str]) -> list[str]:
        """Return these texts of rows of one token, or the bytes of those that are parts of characters."""
        values = (
            token_bytes(text, self.tokenizer.vocabulary_bytes(id_))
            for [id_], text in zip(rows, texts, strict=True)
        )
        return [shown_token(text, value) for text, value in zip(texts, values, strict=True)]

    def tokenized(
        self, texts: Sequence[str], limit: int, param: str, *, special: bool = True, listed: bool = True
    ) -> list[Row]:
        """Raises ContextLengthExceeded for a text that cannot fit by its size alone, untokenised."""
        most = max(LEAST_CHARACTERS, limit * CHARACTERS_PER_TOKEN)
        for i, text in enumerate(texts):
            if len(text) > most:
                where = f"{param}[{i}]" if listed else param
                raise ContextLengthExceeded.at(
                    where,
                    f"{len(text)} characters are more than the {most} that a text of at most "
                    f"{limit} tokens may have",
                )
        return self.tokenizer.encode(texts, special)

    def input_rows(
        self, blob: memoryview, *, tokens: bool, prompt: str = "", special: bool = True
    ) -> list[Row]:
        """Return the ids of each input, whatever its length. `tokens`: the inputs are ids. Raises
        InvalidArgument."""
        if tokens:
            ids = decoded(blob, list[list[int]])
            rows: list[Row] = [np.array(row, np.int64) for row in ids]
            check_ids(rows, self.vocab_size)
        else:
            texts = decoded(blob, list[str])
            texts = [prompt + text for text in texts] if prompt else texts
            rows = self.tokenized(texts, self.limit, "input", special=special)
        for i, row in enumerate(rows):
            if not row.size:
                raise InvalidArgument.at(f"input[{i}]", "has no tokens")
        return rows

    def fitting(self, rows: Sequence[Row], most: int) -> tuple[list[Row], int]:
        """Return the rows cut to `most` tokens, and how many were cut."""
        cut = [self.framed.fit(row, most) for row in rows]
        return cut, sum(len(a) < len(b) for a, b in zip(cut, rows, strict=True))

    def close(self) -> None:
        """Called when the model is unloaded and no call runs."""
        self.runner.close()

    def values(self, invocation: Invocation, job: Job) -> NDArray[np.float32]:
        """Run a job; return [rows, width]. Raises Left when its caller leaves."""
        self.wait(invocation, job)
        return self.results(job)

    def wait(self, invocation: Invocation, job: Job) -> None:
        """Run a job. Raises Left when its caller leaves."""
        self.runner.submit(job)
        while not job.done.wait(CANCEL_POLL_SECONDS):
            if invocation.cancelled:
                self.runner.withdraw(job)
                raise Left

    def results(self, job: Job) -> NDArray[np.float32]:
        """Return [rows, width] of a job that has ended. Raises its error."""
        if job.error is not None:
            raise job.error
        assert job.results is not None
        return job.results


def check_lengths(rows: Sequence[Row], longest: int, param: str = "input") -> None:
    """Raises ContextLengthExceeded for a row that is longer."""
    for i, row in enumerate(rows):
        if len(row) > longest:
            raise ContextLengthExceeded(
                f"Input length {len(row)} longer than allowed {longest}: {param}[{i}] has {len(row)} "
                f"tokens, and this model reads at most {longest}",
                param=f"{param}[{i}]",
            )


def sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # of a large negative value, whose sigmoid is 0
        probabilities: NDArray[np.float32] = (1 / (1 + np.exp(-values))).astype(np.float32, copy=False)
    return probabilities


def decoded(blob: memoryview, type_: Any) -> Any:
    """Raises InvalidArgument for a blob of another shape."""
    try:
        return msgspec.msgpack.decode(blob, type=type_)
    except msgspec.MsgspecError as error:
        raise InvalidArgument.at("input", f"{error}") from error

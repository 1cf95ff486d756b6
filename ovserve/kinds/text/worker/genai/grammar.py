"""Compiles grammars with the library's own compiler, where an error does not affect other requests.

The library compiles a request's grammar inside `step()`, where an error takes every running request with it,
and it has no call that only compiles. But a pipeline of a model that computes nothing, over the same
tokenizer, compiles the same way, raises from its own `generate()`, and releases the GIL meanwhile. So this
is used twice:

- in the process that only proves, which may be killed when a grammar takes too long;
- in the engine process, on a thread of its own, parallel to the steps. The compiler and its cache belong to
  the tokenizer object, which both pipelines share, so the step that meets the request finds the grammar
  there.

The second holds only if both models have as many logits: for another number the library throws the compiler
away and makes a new one. No call reports the number, but a pipeline's metrics report how long its compiler
took to be made, so `_beside` looks for a number with which that does not change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import openvino
import openvino_genai as ov_genai
from openvino import opset13 as ops

from ovserve.engine.host.cpu import below_the_steps
from ovserve.engine.protocol.messages import Compiled, Failed
from ovserve.errors import Internal, LoadError, sentences_of
from ovserve.kinds.text.worker.genai.options import writable
from ovserve.llm.grammar.constraint import Constraint, constrain, digest, literal, structural_tag
from ovserve.llm.grammar.cost import NO_TEXT, PROBE_TOKENS, TOO_MUCH_MEMORY, cheap_tokens
from ovserve.scratch import scratch_directory

# One prompt answered whole, by the pipeline that a compiler works for.
GenerateCall = Callable[[openvino.Tensor, ov_genai.GenerationConfig], ov_genai.PerfMetrics]

TRIVIAL = structural_tag(constrain(literal("a"), "").format)
_TOKENIZER_ONLY = {"INFERENCE_NUM_THREADS": 1, "ATTENTION_BACKEND": "SDPA"}


class GrammarCompiler:
    """One grammar at a time, on its own thread. Not thread-safe itself: one caller."""

    def __init__(self, tokenizer: ov_genai.Tokenizer, logits: int) -> None:
        self._tokenizer, self.logits = tokenizer, logits
        self._pipeline = _idle_pipeline(tokenizer, logits)
        self._thread = ThreadPoolExecutor(1, "grammar", initializer=below_the_steps)
        self._running: dict[int, Future[str]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def start(self, id_: int, structural_tag: str, *, validated: bool = False) -> None:
        """`validated`: known to have texts, so that compiling it is enough."""
        tokens = 1 if validated else PROBE_TOKENS
        self._running[id_] = self._thread.submit(self.compile, structural_tag, tokens)

    def finished(self) -> list[Compiled | Failed]:
        """Those that ended since the last call, good or bad."""
        ended = [id_ for id_, future in self._running.items() if future.done()]
        words: list[Compiled | Failed] = []
        for id_ in ended:
            fault = self._running.pop(id_).result()
            words.append(Failed(id_, "invalid_argument", fault) if fault else Compiled(id_))
        return words

    def clear(self) -> None:
        """Drop all grammars: the compiler, its cache with it, is thrown away and made again. Not during a
        step nor while one is compiled; takes as long as making it, a fraction of a second."""
        _idle_pipeline(self._tokenizer, self.logits + 1).generate(_one_token(), _config(TRIVIAL, 1))
        self.compile(TRIVIAL)

    def compile(self, structural_tag: str, probe: int = PROBE_TOKENS) -> str:
        """Compile on the caller's thread; return the error, or ""."""
        try:
            [tokens] = self._pipeline.generate(_one_token(), _config(structural_tag, probe)).tokens
        except MemoryError:
            return TOO_MUCH_MEMORY
        except Exception as error:  # noqa: BLE001  whatever it was, it is said of this grammar, to its owner
            return said(error)
        # Where a grammar leaves nothing, the sampler falls back on token 0, which has the smallest logit.
        return NO_TEXT if tokens[-2:] == [0, 0] else ""


class Grammars:
    """The grammars of an engine: compiled in parallel to its steps, and only then admitted. `quiet`: nothing
    computes at the moment, so that a compiler may be thrown away."""

    def __init__(self, quiet: Callable[[], bool] = lambda: True) -> None:
        self._quiet = quiet
        self._compiler: GrammarCompiler | None = None
        # to be compiled, after what is to be dropped has been
        self._waiting: dict[int, tuple[str, bool]] = {}
        self._running: dict[int, str] = {}
        self._done: set[bytes] = set()
        self._clearing = False
        self._stale: set[int] = set()  # of those that run: what is to be dropped too

    def attach(
        self,
        answer: GenerateCall,
        tokenizer: ov_genai.Tokenizer,
        vocab_size: int,
        prepared: GrammarCompiler | None = None,
    ) -> None:
        """Compile for the pipeline that `answer` asks, which has no requests yet. `prepared`: from `prepare`,
        with the same tokenizer."""
        try:
            self._compiler = _beside(answer, tokenizer, _sizes(tokenizer, vocab_size), prepared)
        except RuntimeError as error:  # a tokenizer without a vocabulary; the prover says so to who asks
            print(f"no grammars: {said(error)}", file=sys.stderr)  # noqa: T201  this process's log

    @property
    def compiling(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def parallel(self) -> bool:
        """Return whether they are compiled in parallel to the steps, where a failure affects no other
        request."""
        return self._compiler is not None

    def compile(self, id_: int, structural_tag: str, *, validated: bool = False) -> None:
        self._waiting[id_] = (structural_tag, validated)
        self.proceed()

    def clear(self) -> None:
        """Drop all, as soon as nothing is being compiled; what is started meanwhile waits for it."""
        self._done.clear()
        self._stale, self._clearing = set(self._running), True
        self.proceed()

    def proceed(self) -> None:
        """Drop and begin what waits for it, if nothing computes now."""
        if self._clearing:
            if self._running or not self._quiet():
                return
            if self._compiler is not None:
                self._compiler.clear()
            self._stale, self._clearing = set(), False
        waiting, self._waiting = self._waiting, {}
        for id_, (tag, validated) in waiting.items():
            self._running[id_] = tag
            if self._compiler is not None:
                self._compiler.start(id_, tag, validated=validated)

    def compiled(self) -> list[Compiled | Failed]:
        """Those that ended since the last call, good or bad."""
        if self._compiler is None:  # no size fits: a step compiles it while others wait; but it is proven
            words: list[Compiled | Failed] = [Compiled(id_) for id_ in self._running]
        else:
            words = self._compiler.finished()
        for word in words:
            tag = self._running.pop(word.id)
            if isinstance(word, Compiled) and word.id not in self._stale:
                self._done.add(digest(tag))
        self.proceed()
        return words

    def admitted(self, constraint: Constraint) -> ov_genai.StructuredOutputConfig:
        """Raises Internal for a grammar that was not compiled: it could raise in a step, or hold one up."""
        tag = structural_tag(constraint.format)
        if digest(tag) not in self._done:
            raise Internal("this grammar was not compiled before")
        return ov_genai.StructuredOutputConfig(structural_tags_config=tag)


def prepare(tokenizer: ov_genai.Tokenizer, vocab_size: int) -> GrammarCompiler | None:
    """Return a compiler for the likely number of logits, for `attach`, before there is a pipeline.

    None if it cannot be made: `attach` makes it then, and reports the reason.
    """
    try:
        for logits in _sizes(tokenizer, vocab_size):
            compiler = GrammarCompiler(tokenizer, logits)
            compiler.compile(TRIVIAL)  # makes the library's compiler, which the pipeline then finds
            return compiler
    except RuntimeError:
        pass
    return None


def _beside(
    answer: GenerateCall,
    tokenizer: ov_genai.Tokenizer,
    sizes: Iterable[int],
    prepared: GrammarCompiler | None,
) -> GrammarCompiler | None:
    """A compiler whose work this idle pipeline finds done; None if none of these numbers of logits fits."""
    for logits in sizes:
        first_times = _init_times(answer)
        if prepared is not None and prepared.logits == logits:
            compiler = prepared
        else:
            compiler = GrammarCompiler(tokenizer, logits)
        compiler.compile(TRIVIAL)
        if first_times and _init_times(answer) == first_times:
            return compiler
    return None


def _sizes(tokenizer: ov_genai.Tokenizer, vocab_size: int) -> Iterator[int]:
    """The likely numbers of logits; the second takes a tenth of a second to be had."""
    if vocab_size > 0:
        yield vocab_size
    if (tokens := len(tokenizer.get_vocab())) not in (0, vocab_size):
        yield tokens


def _init_times(answer: GenerateCall) -> object:
    """Return how many microseconds its compiler took to be made, which identifies the compiler."""
    return answer(_one_token(), _config(TRIVIAL, 1)).get_grammar_compiler_init_times()


def _idle_pipeline(tokenizer: ov_genai.Tokenizer, logits: int) -> ov_genai.LLMPipeline:
    """A language model that likes all tokens equally, and token 0 least."""
    ids = ops.parameter([-1, -1], openvino.Type.i64)
    mask = ops.parameter([-1, -1], openvino.Type.i64)
    beams = ops.parameter([-1], openvino.Type.i32)
    for node, name in ((ids, "input_ids"), (mask, "attention_mask"), (beams, "beam_idx")):
        node.output(0).get_tensor().set_names({name})
    bias = np.zeros(logits, np.float32)
    bias[0] = -1.0
    nothing = ops.multiply(
        ops.convert(ops.unsqueeze(ids, ops.constant(np.int64(2))), "f32"), ops.constant(np.float32(0))
    )
    result = ops.result(ops.add(nothing, ops.constant(bias)))
    result.output(0).get_tensor().set_names({"logits"})
    model = openvino.Model([result], [ids, mask, beams], "idle")
    with scratch_directory("ovserve-idle-") as directory:  # the library takes XML text and weights
        path = directory / "idle.xml"
        openvino.save_model(model, path, compress_to_fp16=False)
        weights = np.fromfile(path.with_suffix(".bin"), np.uint8)
        return ov_genai.LLMPipeline(
            path.read_text(), openvino.Tensor(weights), tokenizer, "CPU", None, **_TOKENIZER_ONLY
        )


def _config(structural_tag: str, tokens: int) -> ov_genai.GenerationConfig:
    config = ov_genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.apply_chat_template = False
    config.structured_output_config = ov_genai.StructuredOutputConfig(structural_tags_config=structural_tag)
    return config


def _one_token() -> openvino.Tensor:
    tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, 1]))
    tensor.data[0] = 1
    return tensor


def said(error: Exception) -> str:
    """The compiler's sentence, without the time, file and line before it."""
    text = sentences_of(error)[-1]
    head, separator, rest = text.partition(".cc:")
    if separator and " " in rest and "/" in head:
        return rest.partition(" ")[2].strip() or text
    return text.removeprefix("Failed to create grammar from structural tag: ")


# Proves grammars of the library's engines, in a process of its own that has a tokenizer and no model.


def prover(model_path: str) -> Callable[[str], str]:
    """Return the prover of a process that has a tokenizer and no model. Raises LoadError.

    The prover returns what is wrong with a structural tag, or "". It raises ResourceExhausted where the
    tag's tokens would hold up the steps.
    """
    try:
        with writable(model_path) as path:
            tokenizer = ov_genai.Tokenizer(path)
        compiler = GrammarCompiler(tokenizer, len(tokenizer.get_vocab()))
        compiler.compile(TRIVIAL)  # makes the library's compiler, so that no grammar pays for that
    except (RuntimeError, TypeError) as error:
        raise LoadError(said(error)) from error

    def prove(structural_tag: str) -> str:
        if fault := compiler.compile(structural_tag, 1):
            return fault
        with cheap_tokens():
            return compiler.compile(structural_tag)

    return prove

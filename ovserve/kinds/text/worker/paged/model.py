"""A model with paged attention: its inputs are blocks of a KV cache, and which tokens of which sequence come
next.

`graph.py` makes its graph of that of an ordinary model.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from ovserve.engine.host.cpu import KERNEL_FLAGS, below_the_steps, processor
from ovserve.engine.host.memory import memory
from ovserve.engine.model.files import PACKED
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.kernels.attention import PAGED_ATTENTION, replace_attention
from ovserve.kinds.text.worker.kernels.library import KernelError, Library, open_library
from ovserve.kinds.text.worker.kernels.matmul import has_experts, replace_products, widen
from ovserve.kinds.text.worker.paged.graph import CACHES, read_paged
from ovserve.kinds.text.worker.paged.runner import (
    RESERVED_STATES,
    STATES,
    ZERO_STATE,
    Runner,
)

FILE = "openvino_model.xml"
BLOCK_TOKENS = 32  # tokens of a block of the KV cache, as the CPU plugin wants it
# A number for each token of a step of decodes.
OF_TOKENS = "input_ids", "position_ids", "rows", "past_lens", "la.past_lens", "la.cache_interval"
BOUNDARIES = "subsequence_begins", "block_indices_begins", "la.block_indices_begins"  # one more
SMALL_WEIGHTS_BYTES = 256 << 20  # bytes of weights
FEW_TOKENS = 16  # tokens of a step
DECODES_BEFORE_FORM = 128  # steps of as many decodes; compiling takes 2 s of a core
MOST_DECODE_FORMS = 6  # each takes 7 MB (SmolLM2) to 17 (3 B parameters)
MOST_BLOCKS = 4 << 20  # in the tables of a form, of 4 bytes each
MOST_SHARED_CONSTANTS = 64 << 20  # bytes of a model's constants, of which each form might have a copy
MAX_CACHE_SHARE = 0.5  # of the memory that is free after the load, for a cache that grows as needed
WIDE_CACHE_TOKENS = 65_536  # that a KV cache in 16 bits must hold, or it is in 8
COPY_SIZE_RATIO = 1.2  # memory of a compiled model, over its file
MAX_COPY_SHARE = 0.5  # of the memory that is left, for copies of the weights; the other half is the cache's
MEASURED_TOKENS = 1, 2, 4, 8, 16  # of steps, to know what candidates cost
PRECISION = {"INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"}  # an operator's choice is for every step
CACHE_TYPES = PRECISION | {"KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"}
ACTIVATION_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
WIDE_ACTIVATION_GROUP = (
    64  # activations that share a scale when they are rounded to 8 bits; the device's are 32
)
LIBRARY_PROPERTIES = {ACTIVATION_GROUP, "EXECUTION_MODE_HINT"}  # an operator chooses OpenVINO's kernels
PACKED_TYPES = (openvino.Type.u4, openvino.Type.i4, openvino.Type.u8, openvino.Type.i8)
Shapes = dict[str, tuple[openvino.Type, list[int]]]


def takes_wide_groups(model: openvino.Model) -> bool:
    """Return whether the weights have 4 or 8 bits, and none has a scale for fewer than 64 numbers of a row.

    Then activations may share a scale by 64. In the shape of Llama-3.2-3B in int4 by 128 a prompt takes 0.78
    of the CPU time and a step of one or eight streams 0.82 and 0.76; Qwen2.5-Coder-0.5B's perplexity stays in
    int4, and rises by 0.1 % in int8 (benchmarks/measurements.md). Weights with scales by 32 would leave the
    kernels in 8 bits.
    """
    groups = [
        node.shape[-1]
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
        and node.get_element_type() in PACKED_TYPES
        and len(node.shape) > 1
        and node.shape[-1] > 1  # else zero points
    ]
    return bool(groups) and all(size % WIDE_ACTIVATION_GROUP == 0 for size in groups)


def wide_token_bytes(model: openvino.Model) -> int:
    """Return the bytes of a token's keys and values in 16 bits."""
    layers = [node for node in model.get_ops() if node.get_type_name() == PAGED_ATTENTION]
    shapes = [node.get_input_partial_shape(at) for node in layers for at in (1, 2)]  # keys, then values
    return sum(2 * shape[-1].get_length() for shape in shapes if shape[-1].is_static)


def find_library() -> Library | None:
    """Return the kernels, or None where they cannot be had, which the log says."""
    try:
        return open_library()
    except KernelError as error:
        print(f"OpenVINO's kernels compute, which takes more memory and time: {error}", file=sys.stderr)  # noqa: T201  this process's log
        return None


class PagedModel:
    """The model on the device, and the KV cache: `compile`, then `allocate`.

    Where OpenVINO's kernels compute, steps of few tokens have forms of their own. They are compiled in the
    background (`start_forms`), so that a start takes no longer:

    - With AMX, steps of up to FEW_TOKENS compute in f32, with the packed weights that `ovserve pull` leaves
      next to unpacked ones. For tiles of sixteen rows the plugin's kernels in bf16 are fast, for one row
      they are not. SmolLM2 takes 9.9 ms instead of 17.2 for one stream, 17.0 instead of 20.3 for 8, and 36.3
      instead of 32.5 for 32 (`benchmarks.few_tokens`, Sapphire Rapids). For 16 they are equal.
    - A small model that OpenVINO's kernels compute is compiled once more for steps of one token. With fixed
      shapes these take SmolLM2 6.9 ms instead of 8.0, with AMX about 1 ms less, for 250 MB of memory. A model
      of 500 M parameters gains nothing.

    Where our kernels compute and the cache is in bf16, so does attention of our own. A decode is rounded the
    same way in any company, so drafts change no text. Steps of as many decodes as there often are get a form
    with fixed shapes, on demand: else the plugin infers the output shape of each operation of ours before it
    runs, 180 times a step. One stream of SmolLM2 is 1.44 times as fast, 16 are 1.18, four of 3 B 1.11
    (`benchmarks.few_tokens`, AMD, AVX2). The results are the same, bit by bit.
    """

    def __init__(
        self,
        file: Path,
        device: str,
        properties: Mapping[str, Any],
        tiles: bool = False,
        cache_bytes: int = 0,
    ) -> None:
        """Read the file. Raises LoadError.

        `tiles`: the processor has AMX. `cache_bytes`: size of the KV cache; 0: it grows into free memory. If
        WIDE_CACHE_TOKENS fit into it, the cache is in 16 bits where that is faster.
        """
        self._core = openvino.Core()
        self._file, self._device, self._properties = file, device, dict(properties)
        self._read = read_paged(self._core, file)
        self.vocabulary: int = self._read.outputs[0].partial_shape[1].get_length()
        # OpenVINO may compute every expert for every token, so kernels of ours compute them with AMX too.
        mixes = device == "CPU" and has_experts(self._read)
        has_kernels = processor().flags >= KERNEL_FLAGS if mixes else processor().has_kernels
        tiles = tiles and not mixes
        self._in_f32 = tiles and not PRECISION & self._properties.keys()
        self.packed_bytes = 0  # of weights that kernels of ours compute with
        packs = device == "CPU" and not tiles
        library = None
        if packs and has_kernels and not LIBRARY_PROPERTIES & self._properties.keys():
            library = self._pack()
        if library is None:
            widen(self._read)
            if mixes:
                print("OpenVINO computes the experts, which takes more time", file=sys.stderr)  # noqa: T201  this process's log
            if packs and takes_wide_groups(self._read):
                self._properties.setdefault(ACTIVATION_GROUP, WIDE_ACTIVATION_GROUP)
        plugin_is_faster = processor().wide_cache_is_faster
        chooses = device == "CPU" and not CACHE_TYPES & self._properties.keys()
        if chooses and (library is not None or plugin_is_faster):
            free = memory().available - int(file.with_suffix(".bin").stat().st_size * COPY_SIZE_RATIO)
            room = cache_bytes or int(free * MAX_CACHE_SHARE)
            if wide_token_bytes(self._read) * WIDE_CACHE_TOKENS <= room:
                self._properties["KV_CACHE_PRECISION"] = "bf16"
        own: dict[str, list[int]] = {}
        cache_options = {name: value for name, value in self._properties.items() if name in CACHE_TYPES}
        if library is not None and cache_options == {"KV_CACHE_PRECISION": "bf16"}:
            own = replace_attention(self._read, library, BLOCK_TOKENS)
        self._shapes = {name: (openvino.Type.u8, shape) for name, shape in own.items()}
        self.own_attention = bool(own)  # it computes in f32, and has bytes for a cache in bf16
        if self.own_attention or (chooses and not plugin_is_faster):
            self._properties.pop("KV_CACHE_PRECISION", None)
        if self.own_attention:
            self._properties["INFERENCE_PRECISION_HINT"] = "f32"
        self._form_read: tuple[Path, openvino.Model] | None = None
        self._cache: dict[str, openvino.Tensor] = {}
        self._states: dict[str, openvino.Tensor] = {}
        self.compiled: openvino.CompiledModel
        self.block_bytes = self.blocks = self.state_bytes = 0
        self.runner: Runner
        self.few: Runner | None = None  # for up to FEW_TOKENS
        self.decode_forms: dict[int, Runner] = {}  # for one token of each of so many sequences
        self._decode_steps = Counter[int]()
        self._template: openvino.Model | None = None  # of the forms for decodes
        self._compiling: threading.Thread | None = None

    def _pack(self) -> Library | None:
        """Let kernels of ours compute the products that they can; return their library, or None."""
        library = find_library()
        if library is not None:
            self.packed_bytes = replace_products(self._read, library)
        if not self.packed_bytes:
            return None
        if self._properties.pop("CACHE_DIR", None):  # it could not be read back
            print("CACHE_DIR has no effect: compiling takes a second here", file=sys.stderr)  # noqa: T201  this process's log
        return library

    def read_forms(self) -> None:
        """Read what the forms are made of, while `compile` runs. Later this would hold up a first step,
        because the library's transformation keeps the interpreter lock for 0.2 s (SmolLM2)."""
        if self._has_forms:
            file = self._form_file
            with suppress(LoadError, RuntimeError):  # raised again, and reported, when they are compiled
                self._form_read = file, read_paged(self._core, file)

    def compile(self) -> None:
        """Compile, and compute a first token with a cache of one block. That takes most of the memory, 1.9 of
        2.6 GB for 3 B parameters, so what is left for a cache is known only afterwards.

        Raises RuntimeError for properties that the device does not know.
        """
        self.compiled = self._core.compile_model(self._read, self._device, self._properties)
        constants = (node for node in self._read.get_ops() if node.get_type_name() == "Constant")
        self._state_shapes = _caches(
            self.compiled, STATES
        )  # with them, shapes cannot be fixed: OpenVINO 2026.4
        small = sum(node.get_byte_size() for node in constants) <= MOST_SHARED_CONSTANTS
        if self.own_attention and small and not self._state_shapes:
            self._template = self._read
        del self._read
        self._shapes = self._shapes or _caches(self.compiled)
        self.state_bytes = _bytes_of(self._state_shapes)
        # With a cache in bf16 the plugin computes in nothing but bf16.
        self._in_f32 &= all(kind.size == 1 for kind, _ in self._shapes.values())
        self.block_bytes = _bytes_of(self._shapes)
        self._states = self._make_states(RESERVED_STATES)
        self.runner = Runner(self.compiled, self.make_cache(1) | self._states)
        self.runner.warm(0)

    def allocate(self, blocks: int, states: int = 0) -> None:
        """Make the cache, and so many slots for states. The kernel gives memory to a block when it is first
        written, so a cache may be as large as it could ever become."""
        self.blocks = blocks
        self._cache = self.make_cache(blocks + 1)  # the last one is for `Runner.warm` of the forms
        self._states = self._make_states(states)
        self.runner.use(self._cache | self._states)

    def step_seconds(self) -> dict[int, float]:
        """Return the seconds of steps of a few tokens, if one has no form of its own."""
        seconds: dict[int, float] = {}
        for tokens in () if self._has_forms else np.repeat(MEASURED_TOKENS, 2).tolist():  # the first prepares
            began = time.perf_counter()
            self.runner.warm(self.blocks, tokens)
            seconds[tokens] = time.perf_counter() - began
        return seconds

    def start_forms(self) -> None:
        """Begin to compile the forms for steps of few tokens."""
        if self._has_forms:
            self._start(self._compile_forms)

    def _start(self, compile_forms: Callable[..., None], *arguments: object) -> None:
        """Compile in a thread of less priority than the steps."""

        def compile_below_the_steps() -> None:
            below_the_steps()
            compile_forms(*arguments)

        self._compiling = threading.Thread(target=compile_below_the_steps, name="compile forms")
        self._compiling.start()

    def runner_for(self, tokens: int, *, are_decodes: bool) -> Runner:
        """Return the form for a step. `are_decodes`: it has one token of each sequence, and their logits."""
        if are_decodes and tokens in self.decode_forms:
            return self.decode_forms[tokens]
        may_have = are_decodes and tokens <= FEW_TOKENS and tokens * self.blocks <= MOST_BLOCKS
        if may_have and self._template is not None and len(self.decode_forms) < MOST_DECODE_FORMS:
            self._decode_steps[tokens] += 1
            is_free = self._compiling is None or not self._compiling.is_alive()
            if self._decode_steps[tokens] > DECODES_BEFORE_FORM and is_free:
                self._start(self.compile_decodes, tokens)
        return self.few if tokens <= FEW_TOKENS and self.few is not None else self.runner

    def compile_decodes(self, tokens: int) -> None:
        """Compile the form for steps of so many decodes, if attention is our own."""
        if self._template is None:
            return
        try:
            model = _for_decodes(self._template.clone(), tokens, tokens * (self.blocks + 1))
            if (form := self._form(model, self._properties, tokens)) is not None:
                self.decode_forms[tokens] = form
        except (RuntimeError, MemoryError) as error:  # else each further step would try again
            self._template = None
            print(f"steps of decodes use the form for all: {error}", file=sys.stderr)  # noqa: T201  this process's log

    def make_cache(self, blocks: int) -> dict[str, openvino.Tensor]:
        return {
            name: openvino.Tensor(kind, openvino.Shape([blocks, *sizes]))
            for name, (kind, sizes) in self._shapes.items()
        }

    def _make_states(self, slots: int) -> dict[str, openvino.Tensor]:
        tables = {
            name: openvino.Tensor(kind, openvino.Shape([slots, *sizes]))
            for name, (kind, sizes) in self._state_shapes.items()
        }
        for table in tables.values():
            table.data[ZERO_STATE] = 0
        return tables

    def copy_block(self, source: int, target: int) -> None:
        for cache in self._cache.values():
            data = cache.data  # bf16 comes as float16 of the same bits
            data[target] = data[source]

    def cache_bytes(self) -> list[NDArray[np.uint8]]:
        """Return the bytes of each cache, [blocks, bytes of a block], without a copy."""
        return [cache.data.view(np.uint8).reshape(cache.shape[0], -1) for cache in self._cache.values()]

    @property
    def cache_types(self) -> str:
        if self.own_attention:
            return "bf16"
        return " and ".join(sorted({kind.get_type_name() for kind, _ in self._shapes.values()}))

    def layout(self) -> str:
        """Return what the contents of a block depend on, besides the weights."""
        kernels = bool(self.packed_bytes), self._in_f32
        return f"{openvino.get_version()} {kernels} {sorted(self._properties.items())} {self._shapes}"

    def wait(self) -> None:
        """Wait until all forms are compiled."""
        if self._compiling is not None:
            self._compiling.join()

    @property
    def _form_file(self) -> Path:
        packed = self._file.with_name(PACKED)
        return packed if self._in_f32 and packed.is_file() else self._file

    @property
    def _small(self) -> bool:
        return self._form_file.with_suffix(".bin").stat().st_size <= SMALL_WEIGHTS_BYTES

    @property
    def _has_forms(self) -> bool:
        return self._in_f32 or (self._small and not self.packed_bytes)

    def _compile_forms(self) -> None:
        properties = self._properties | ({"INFERENCE_PRECISION_HINT": "f32"} if self._in_f32 else {})
        first, self._form_read = self._form_read, None
        file, available = self._form_file, memory().available
        copy = int(file.with_suffix(".bin").stat().st_size * COPY_SIZE_RATIO)
        if available and copy > available * MAX_COPY_SHARE:
            print(  # noqa: T201  this process's log
                "steps of few tokens use the form for many: another copy of the weights takes "
                f"{copy >> 20} MB, of {available >> 20} MB of memory left",
                file=sys.stderr,
            )
            return
        try:
            model = first[1] if first is not None and first[0] == file else read_paged(self._core, file)
            del first
            widen(model)
            if self._in_f32:
                self.few = self._form(model, properties)
            if (
                self._small
                and not self._states
                and (form := self._form(_for_decodes(model, 1), properties)) is not None
            ):
                self.decode_forms[1] = form
        except (LoadError, RuntimeError) as error:
            print(f"steps of few tokens use the form for many: {error}", file=sys.stderr)  # noqa: T201  this process's log

    def _form(
        self, model: openvino.Model, properties: Mapping[str, Any], sequences: int = 1
    ) -> Runner | None:
        """Return a runner over the same cache, or None if the form would lay it out otherwise."""
        compiled = self._core.compile_model(model, self._device, dict(properties))
        if not self.own_attention and _caches(compiled) != self._shapes:
            return None
        runner = Runner(compiled, self._cache | self._states)
        runner.warm(self.blocks, sequences=sequences)
        return runner


def _for_decodes(model: openvino.Model, tokens: int, blocks: int = 0) -> openvino.Model:
    """Fix the shapes for one token of each of so many sequences. `blocks`: in their tables together, at most;
    0: that stays open."""
    sizes = dict.fromkeys(OF_TOKENS, tokens) | dict.fromkeys(BOUNDARIES, tokens + 1)
    sizes["la.block_indices"] = 2 * tokens
    sizes |= {"block_indices": blocks} if blocks else {}
    names = {port.any_name for port in model.inputs}
    model.reshape({name: [size] for name, size in sizes.items() if name in names})
    return model


def _caches(model: openvino.CompiledModel, part: str = CACHES) -> Shapes:
    """Return types and shapes of a block of each cache, or of a state. `part`: of the names of the inputs."""
    return {
        port.any_name: (port.element_type, [size.get_length() for size in list(port.partial_shape)[1:]])
        for port in model.inputs
        if part in port.any_name
    }


def _bytes_of(shapes: Shapes) -> int:
    return sum(int(np.prod(sizes)) * kind.size for kind, sizes in shapes.values())

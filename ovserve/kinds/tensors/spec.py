"""Plain models: what their engine is started with, what it reports of them, and the arguments of a call.

A plain model has named tensors in and out, and no tokenizer: OpenVINO IR, ONNX, TensorFlow, TFLite or Paddle.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from ovserve.engine.model.files import refusal, weights_fault
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError

INFER = "infer"  # the one method of such an engine
UNBOUNDED_SIZE = -1  # the upper bound of a dimension without one, and the size of a dynamic dimension

# The datatypes of KServe's protocol by OpenVINO's names.
KSERVE_TYPES = {
    "f16": "FP16", "f32": "FP32", "f64": "FP64", "bf16": "BF16", "boolean": "BOOL", "string": "BYTES",
    "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64",
    "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
}  # fmt: skip

# `raw`: the elements as KServe's raw bytes. `image`: 8-bit pixels, N x H x W x C, to be brought into the
# layout and type of the input.
Form = Literal["raw", "image"]


class TensorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input or output.

    `name` is that which clients use. `names` are all that mean it, in the model and in its mapping. `dims`
    are the lower and the upper bound of each dimension; None: not even the rank is known.
    """

    name: str
    datatype: str  # as in KServe; "" for a type that its protocol lacks
    dims: tuple[tuple[int, int], ...] | None
    names: tuple[str, ...] = ()
    layout: str = ""  # as "NHWC", if known

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape, with -1 for dynamic dimensions; () also for an unknown rank."""
        return tuple(low if low == high else UNBOUNDED_SIZE for low, high in self.dims or ())

    @property
    def bounds(self) -> str:
        """Return the shape for people, as in `[1..8,3,?]`."""
        if self.dims is None:
            return "any shape"
        return f"[{','.join(_bound(*dim) for dim in self.dims)}]"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        if self.dims is None:
            return True
        return len(shape) == len(self.dims) and all(
            low <= size and (high == UNBOUNDED_SIZE or size <= high)
            for size, (low, high) in zip(shape, self.dims, strict=True)
        )


def _bound(low: int, high: int) -> str:
    if low == high:
        return str(low)
    if high == UNBOUNDED_SIZE:
        return "?" if low <= 0 else f"{low}.."
    return f"{low}..{high}"


class TensorFacts(Facts, frozen=True, omit_defaults=True):
    """Facts of a loaded plain model. `max_calls` is the number of its infer requests."""

    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    streams: int = 1  # inferences that the device runs at a time
    stateful: bool = False  # its variables are reset after every inference
    rt_info: dict[str, object] = {}  # the model's `model_info`, as text
    framework: dict[str, str] = {}  # what the file of another framework says of itself, such as a vocabulary

    def input(self, name: str) -> TensorInfo | None:
        return next((i for i in self.inputs if name in i.names), None)

    def output(self, name: str) -> TensorInfo | None:
        return next((o for o in self.outputs if name in o.names), None)


class TensorSpec(Spec, frozen=True):
    """A plain model; `model_path` is its file or the directory of one version.

    `shapes` and `layouts` are pairs of a tensor's name and its text in OVMS's form. An empty name is the only
    input's. So are `means` and `scales`, whose texts are a number or a list for the channels in JSON, and
    `precisions`, a type of OpenVINO or two as in f32:u8. `batch_size` is "" for the model's own, "auto", a
    number, -1 or a range as in 1:8.
    """

    kind: ClassVar[str] = "tensors"
    backend: ClassVar[str] = "ovserve.kinds.tensors.worker.engine:TensorEngine"
    facts_type: ClassVar[type[Facts]] = TensorFacts
    shared: ClassVar[bool] = True

    shapes: tuple[tuple[str, str], ...] = ()
    layouts: tuple[tuple[str, str], ...] = ()
    batch_size: str = ""
    nireq: int = 0  # infer requests; 0: as many as the device recommends
    isolation: Literal["shared", "process"] = "shared"
    color_format: str = "BGR"  # or RGB; of images that are decoded for the model, and of the client's
    model_color_format: str = ""  # the order to convert to; "" for none
    means: tuple[tuple[str, str], ...] = ()
    scales: tuple[tuple[str, str], ...] = ()
    precisions: tuple[tuple[str, str], ...] = ()
    max_batch_size: int = 0  # rows of calls that run as one inference; 0: each call runs alone
    max_queue_delay: float = 0.0  # seconds that the first of them waits for others
    fixed_shapes: bool = True  # a second compilation for the shapes that most calls have


class GivenTensor(msgspec.Struct, frozen=True, array_like=True):
    """One input of a call; its elements are the blob at the same place."""

    input: int  # index in `TensorFacts.inputs`
    shape: tuple[int, ...]
    form: Form = "raw"


class InferArguments(msgspec.Struct, frozen=True, array_like=True):
    """`outputs` are indexes in `TensorFacts.outputs`; their elements come back as blobs in this order."""

    inputs: tuple[GivenTensor, ...]
    outputs: tuple[int, ...]


class InferResult(msgspec.Struct, frozen=True, array_like=True):
    """The item of a call, besides its blobs. Times in microseconds."""

    shapes: tuple[tuple[int, ...], ...]
    inference_us: float
    wait_us: float  # for an infer request


# The files of a plain model on disk: which file of a directory is the model, and its mapping_config.json.


# In OVMS's order: of a directory with several the first kind counts.
SUFFIXES = (".xml", ".onnx", ".pdmodel", ".pb", ".tflite")
SAVED_MODEL = "saved_model.pb"
WEIGHTS_OF = {".pdiparams": ".pdmodel"}  # a path to weights means the model next to them
MAPPING_FILE = "mapping_config.json"


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Aliases under which clients see tensors, by the model's own names."""

    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


def is_model_file(path: Path) -> bool:
    return path.suffix in (*SUFFIXES, *WEIGHTS_OF)


def model_file(path: Path) -> Path:
    """Return what the runtime reads: a file, or the directory of a TensorFlow SavedModel.

    Raises LoadError if there is none, or several of the first kind there is.
    """
    if path.is_file():
        return path.with_suffix(WEIGHTS_OF.get(path.suffix, path.suffix))
    if not path.is_dir():
        raise LoadError(f"{path} does not exist", field="base_path")
    for suffix in SUFFIXES:
        files = sorted(f for f in path.iterdir() if f.suffix == suffix and f.is_file())
        if suffix == ".pb" and path / SAVED_MODEL in files:
            return path
        if len(files) > 1:
            names = ", ".join(f.name for f in files[:5])
            raise LoadError(f"{path} has {len(files)} models, expected one: {names}", field="base_path")
        if files:
            return files[0]
    patterns = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
    raise LoadError(f"{path} has no model file ({patterns})", field="base_path")


def unfinished(path: Path) -> str:
    """Return what a model in OpenVINO IR form lacks to be whole; "" for one that is, and for other forms."""
    try:
        file = model_file(path)
        return weights_fault(file, file.with_suffix(".bin")) if file.suffix == ".xml" else ""
    except LoadError as error:
        return error.reason
    except FileNotFoundError as error:
        return f"{error.filename} has gone"
    except OSError as error:
        return refusal(error)


def read_mapping(path: Path) -> Mapping:
    """Return the aliases of the model in a directory; none for a file. Raises LoadError."""
    file = path / MAPPING_FILE
    if not file.is_file():
        return Mapping()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Mapping)
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(file)) from error
    except msgspec.MsgspecError as error:
        raise LoadError(
            f"expected objects `inputs` and `outputs` of names: {error}", file=str(file)
        ) from error

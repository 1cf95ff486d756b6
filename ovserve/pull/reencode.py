"""Find tensors of a GGUF file that OpenVINO's reader rejects, and write the file with those as Q8_0.

Q5_0 and similar types become Q8_0, which holds more than they do; tensors without whole blocks of 32 become
F16. ggml's own package `gguf`, the extra `convert`, reads and writes the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ovserve.engine.model.gguf import Tensor, read_tensors
from ovserve.errors import LoadError, extra

F32, F16, Q8_0 = 0, 1, 8
READ = {F32, F16, 2, 3, Q8_0, 12, 14}  # and Q4_0, Q4_1, Q4_K, Q6_K: by trial, openvino-genai 2026.4.1
SUPER_BLOCKS = {12: 256, 14: 256}  # rows of these must be whole blocks


def refused(path: Path) -> list[Tensor]:
    """Return the tensors that the reader rejects. Raises GGUFError, OSError."""
    return [t for t in read_tensors(str(path)) if not _is_read(t)]


def _is_read(tensor: Tensor) -> bool:
    if tensor.kind == F32:
        return len(tensor.dims) < 2  # norms and biases; matrices are "Unsupported quantization type"
    return tensor.kind in READ and not tensor.dims[0] % SUPER_BLOCKS.get(tensor.kind, 1)


def reencode(source: Path, target: Path, names: set[str]) -> None:
    """Write `source` anew with these tensors as Q8_0 or F16. Raises LoadError without the package."""
    gguf = library()
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if tensor.name in names:
            values = gguf.quants.dequantize(data, kind)
            whole = not values.shape[-1] % 32
            kind = gguf.GGMLQuantizationType.Q8_0 if whole else gguf.GGMLQuantizationType.F16
            data = gguf.quants.quantize(values.astype("float32"), kind) if whole else values.astype("float16")
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def kinds(tensors: list[Tensor]) -> str:
    """Their types by name, for messages: by ggml's numbers without the package."""
    try:
        names = {int(kind): kind.name for kind in library().GGMLQuantizationType}
    except LoadError:
        names = {}
    return ", ".join(sorted({names.get(t.kind, f"type {t.kind}") for t in tensors}))


def library() -> Any:
    try:
        import gguf
    except ImportError:
        raise LoadError(f"re-encoding tensors needs the package gguf; {extra('convert')}") from None
    return gguf

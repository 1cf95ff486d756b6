"""Write a .gguf file with all its weights in 16 bits: `python -m scripts.float_gguf SOURCE.gguf TARGET.gguf`.

For measurements of `ovserve pull --weight-format`, where only quantised files of a model can be had.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np
from gguf.quants import dequantize


def copied(source: str, target: str, *skipped: str) -> tuple[gguf.GGUFReader, gguf.GGUFWriter]:
    """Return a file and a copy that has its metadata so far, but for keys with these ends."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not (field.name.startswith(("GGUF.", "general.architecture")) or field.name.endswith(skipped)):
            kinds = field.types
            inner = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kinds[0], sub_type=inner)
    return reader, writer


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    reader, writer = copied(*sys.argv[1:3], "general.file_type")
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    write(writer)


if __name__ == "__main__":
    main()

"""Write a .gguf file with all its weights in 16 bits: `python -m scripts.float_gguf SOURCE.gguf TARGET.gguf`.

For measurements of `ovserve pull --weight-format`, where only quantised files of a model can be had.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np
from gguf.quants import dequantize

SKIPPED = ("GGUF.", "general.architecture", "general.file_type")


def main() -> None:
    source, target = sys.argv[1:3]
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if not field.name.startswith(SKIPPED):
            kinds = field.types
            inner = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kinds[0], sub_type=inner)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

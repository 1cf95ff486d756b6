"""Write a .gguf file with each layer twice: `python -m scripts.deeper_gguf SOURCE.gguf TARGET.gguf`.

The second half of the layers adds zeros, so the text is that of the source. For measurements of how fast real
text comes at a size of which no real weights can be had.
"""

from __future__ import annotations

import sys

import numpy as np

from scripts.float_gguf import copied, write

COUNT = ".block_count"  # of layers
OUTPUTS = "attn_output.weight", "ffn_down.weight"  # what a layer adds comes through these


def main() -> None:
    reader, writer = copied(*sys.argv[1:3], COUNT)
    layers = int(reader.fields[writer.arch + COUNT].contents())
    writer.add_block_count(2 * layers)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        if tensor.name.startswith("blk."):
            _, number, name = tensor.name.split(".", 2)
            data = np.zeros_like(tensor.data) if name in OUTPUTS else tensor.data
            writer.add_tensor(f"blk.{int(number) + layers}.{name}", data, raw_dtype=tensor.tensor_type)
    write(writer)


if __name__ == "__main__":
    main()

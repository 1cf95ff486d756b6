"""GGUF to OpenVINO IR: openvino_model, openvino_tokenizer and openvino_detokenizer.

    python -m ovserve.kinds.text.worker.gguf.convert FILE.gguf DIRECTORY [merge] [fp16] [round]

A process of its own, started by `ovserve/pull/convert.py`, because the server imports no openvino. Weights
are read from the mapped file and written chunk by chunk, so that it takes a few hundred megabytes for a model
of any size. `fp16` unpacks the weights, for processors whose kernels for 16 bits are faster where a step has
many tokens, and keeps them packed in a second network, PACKED.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import openvino
from openvino.passes import Manager, Serialize

from ovserve.engine.host.cpu import processor
from ovserve.engine.model.files import PACKED
from ovserve.engine.model.gguf import GGUFError
from ovserve.engine.model.gguf_model import GGUFModel, read_model
from ovserve.kinds.text.worker.gguf.network import MERGE, ROUND, UNPACK, Network
from ovserve.kinds.text.worker.gguf.tokenizer import build_tokenizer
from ovserve.kinds.text.worker.gguf.weights import Constant, WeightsFile
from ovserve.kinds.text.worker.kernels.library import KernelError, open_library

NETWORK = "openvino_model.xml"


def main() -> None:
    source, directory, steps = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    threading.Thread(target=_compile_kernels, name="compile kernels").start()
    try:
        model = read_model(source)
        for graph, name in zip(build_tokenizer(model), ("tokenizer", "detokenizer"), strict=True):
            openvino.save_model(graph, directory / f"openvino_{name}.xml", compress_to_fp16=False)
        if UNPACK in steps:
            _write(model, directory / PACKED, [MERGE, *(step for step in steps if step == ROUND)])
        _write(model, directory / NETWORK, steps)
    except (GGUFError, OSError, RuntimeError) as error:
        sys.exit(f"{error}")


def _compile_kernels() -> None:
    """Compile them while weights are read and written, so that the first load need not wait for it."""
    if processor().has_kernels:
        with suppress(KernelError):  # the load says why
            open_library()


def _write(model: GGUFModel, target: Path, steps: list[str]) -> None:
    with target.with_suffix(".bin").open("wb") as file:
        weights = WeightsFile(file)
        network = Network(model, weights, steps)
        write_network(network.build(), network.constants, weights, target)


def write_network(
    model: openvino.Model, constants: Mapping[str, Constant], weights: WeightsFile, target: Path
) -> None:
    """Write the XML file. Small constants are appended to the weights.

    The weights are in a file already. OpenVINO's writer would need all of them in memory or mapped, and write
    them a second time.
    """
    small = target.with_suffix(".small")
    manager = Manager()
    manager.register_pass(Serialize(str(target), str(small)))
    manager.run_passes(model)
    begin = weights.append(small.read_bytes())
    small.unlink()
    tree = ElementTree.parse(target)
    for layer in tree.iterfind("layers/layer"):
        data = layer.find("data")
        if data is None:
            continue
        if layer.get("type") == "Const":
            data.set("offset", str(begin + int(data.attrib["offset"])))
        elif (constant := constants.get(layer.get("name", ""))) is not None:
            layer.set("type", "Const")
            data.set("offset", str(constant.offset))
            data.set("size", str(constant.size))
            data.set("shape", data.attrib["shape"].replace(",", ", "))
    tree.write(target, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    main()

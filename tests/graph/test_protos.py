"""The generated messages: fresh, private, and with the public numbers."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from ovserve.protos import calculator_pb2, llm_pb2
from ovserve.protos.pool import POOL

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "proto/ovserve/protos").glob("*.proto"))

GENERATE = runpy.run_path(str(ROOT / "proto/generate.py"))

# What `import mediapipe` from pip does to the process, before and after our import.
CLASH = """
from google.protobuf import descriptor_pb2, descriptor_pool
def foreign():
    file = descriptor_pb2.FileDescriptorProto(name="mediapipe/calculator.proto", package="mediapipe")
    for name in ("CalculatorGraphConfig", "CalculatorOptions", "LLMCalculatorOptions"):
        file.message_type.add(name=name)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
def ours():
    from ovserve.graph.config import parse_graph
    config = parse_graph('node { node_options { [x.y/mediapipe.LLMCalculatorOptions] { device: "d" } } }')
    assert config.option_types(0) == ["mediapipe.LLMCalculatorOptions"]
"""


@pytest.mark.parametrize("order", ["foreign(); ours()", "ours(); foreign(); ours()"])
def test_no_clash_with_another_mediapipe(order: str) -> None:
    script = [sys.executable, "-W", "error", "-c", CLASH + order]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_of_ours_is_in_the_default_pool() -> None:
    for message in (calculator_pb2.CalculatorGraphConfig, llm_pb2.LLMCalculatorOptions):
        assert message.DESCRIPTOR.file.pool is POOL
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(message.DESCRIPTOR.full_name)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_generated_code_is_of_this_source(source: Path) -> None:
    module = ROOT / f"ovserve/protos/{source.stem}_pb2.py"
    first = module.read_text("utf-8").split("\n")[0]
    assert first == GENERATE["DIGEST"] + GENERATE["digest"](source), "run `make proto`"
    assert module.with_suffix(".pyi").exists()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("mediapipe.LLMCalculatorOptions.ext", 113473750),
        ("mediapipe.EmbeddingsCalculatorOVOptions.ext", 1134738),
        ("mediapipe.RerankCalculatorOVOptions.ext", 113473746),
        ("mediapipe.ImageGenCalculatorOptions.ext", 116423751),
        ("mediapipe.S2tCalculatorOptions.ext", 116423757),
        ("mediapipe.T2sCalculatorOptions.ext", 116423755),
        ("mediapipe.PythonExecutorCalculatorOptions.ext", 113473748),
        ("mediapipe.SyncSetInputStreamHandlerOptions.ext", 155816273),
    ],
)
def test_extension_numbers(name: str, number: int) -> None:
    assert POOL.FindExtensionByName(name).number == number


def test_an_option_message_from_outside_becomes_known() -> None:
    """How a calculator of another package gets its options read; in a child, since pools only grow."""
    script = f"""
from google.protobuf import descriptor_pb2
from ovserve.graph.config import parse_graph
from ovserve.protos.pool import POOL
file = descriptor_pb2.FileDescriptorProto.FromString({_outside_file()!r})
POOL.AddSerializedFile(file.SerializeToString())
for form in "node_options {{ [a/acme.EchoOptions] {{}} }}", "options {{ [acme.EchoOptions.ext] {{}} }}":
    assert parse_graph("node {{ " + form + " }}").option_types(0) == ["acme.EchoOptions"]
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _outside_file() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="acme.proto", package="acme")
    file.dependency.append("ovserve/protos/calculator.proto")
    message = file.message_type.add(name="EchoOptions")
    message.field.add(name="times", number=1, type=5, label=1)
    message.extension.add(
        name="ext", number=30000, type=11, label=1, type_name=".acme.EchoOptions",
        extendee=".mediapipe.CalculatorOptions",
    )  # fmt: skip
    return file.SerializeToString()

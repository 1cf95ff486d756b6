"""Graphs and handlers of our own, for the behaviour of OVMS's Python nodes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

LOOP_INFO = """
  input_stream_info: { tag_index: 'LOOPBACK:0', back_edge: true }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler",
    options { [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } } }
  }
"""


def graph(inputs: list[str], outputs: list[str], *nodes: str) -> str:
    ends = [f'input_stream: "{s}"' for s in inputs] + [f'output_stream: "{s}"' for s in outputs]
    return "\n".join([*ends, *nodes])


def python(
    name: str,
    inputs: list[str],
    outputs: list[str],
    handler: str = "handler.py",
    *,
    loop: bool = False,
    more: str = "",
) -> str:
    """A node; with `loop` it may answer with a generator."""
    if loop:
        inputs, outputs = [*inputs, f"LOOPBACK:{name}_loop"], [*outputs, f"LOOPBACK:{name}_loop"]
    ends = [f'input_stream: "{s}"' for s in inputs] + [f'output_stream: "{s}"' for s in outputs]
    lines = "\n  ".join(ends)
    return f"""
node {{
  name: "{name}"
  calculator: "PythonExecutorCalculator"
  input_side_packet: "PYTHON_NODE_RESOURCES:py"
  {lines}
  {LOOP_INFO if loop else ""}
  node_options: {{
    [type.googleapis.com / mediapipe.PythonExecutorCalculatorOptions]: {{ handler_path: "{handler}" {more} }}
  }}
}}
"""


def converter(source: str, target: str, name: str = "") -> str:
    options = f'tag_to_output_tensor_names {{ key: "OVMS_PY_TENSOR" value: "{name}" }}' if name else ""
    return f"""
node {{
  name: "{target.lower().replace(":", "_")}_converter"
  calculator: "PyTensorOvTensorConverterCalculator"
  input_stream: "{source}"
  output_stream: "{target}"
  node_options: {{
    [type.googleapis.com / mediapipe.PyTensorOvTensorConverterCalculatorOptions]: {{ {options} }}
  }}
}}
"""


def one(*, loop: bool = False, more: str = "") -> str:
    """A graph of one node."""
    ends = ["OVMS_PY_TENSOR:input"], ["OVMS_PY_TENSOR:output"]
    return graph(*ends, python("node", *ends, loop=loop, more=more))


def write(directory: Path, text: str, **handlers: str) -> Path:
    """Write a graph, and handlers by the name of their file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "graph.pbtxt").write_text(text)
    for name, code in handlers.items():
        (directory / f"{name}.py").write_text(dedent(code))
    return directory

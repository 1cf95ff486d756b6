"""Graphs of our own with the structure of OVMS's test graphs: a session and inference nodes, wired in many ways."""

from __future__ import annotations

SESSION = """
node {{
  calculator: "OpenVINOModelServerSessionCalculator"
  output_side_packet: "SESSION:{packet}"
  node_options: {{
    [type.googleapis.com / mediapipe.OpenVINOModelServerSessionCalculatorOptions]: {{
      servable_name: "{model}" servable_version: "{version}"
    }}
  }}
}}
"""


def session(model: str, packet: str = "session", version: str = "1") -> str:
    return SESSION.format(model=model, packet=packet, version=version)


def maps(inputs: dict[str, str], outputs: dict[str, str], more: str = "") -> str:
    rows = [f'tag_to_input_tensor_names {{ key: "{k}" value: "{v}" }}' for k, v in inputs.items()]
    rows += [f'tag_to_output_tensor_names {{ key: "{k}" value: "{v}" }}' for k, v in outputs.items()]
    return "\n      ".join([*rows, more])


def inference(inputs: list[str], outputs: list[str], options: str, packet: str = "session") -> str:
    ends = [f'input_stream: "{e}"' for e in inputs] + [f'output_stream: "{e}"' for e in outputs]
    streams = "\n  ".join(ends)
    return f"""
node {{
  calculator: "OpenVINOInferenceCalculator"
  input_side_packet: "SESSION:{packet}"
  {streams}
  node_options: {{
    [type.googleapis.com / mediapipe.OpenVINOInferenceCalculatorOptions]: {{
      {options}
    }}
  }}
}}
"""


def graph(inputs: list[str], outputs: list[str], *nodes: str) -> str:
    ends = [f'input_stream: "{e}"' for e in inputs] + [f'output_stream: "{e}"' for e in outputs]
    return "\n".join([*ends, *nodes])


def one(
    model: str, inputs: dict[str, tuple[str, str]], outputs: dict[str, tuple[str, str]], *, tags: bool = True
) -> str:
    """A graph of one model. By tag: the stream, and the tensor."""
    into = [f"{tag}:{stream}" for tag, (stream, _) in inputs.items()]
    out = [f"{tag}:{stream}" for tag, (stream, _) in outputs.items()]
    names = maps({t: n for t, (_, n) in inputs.items()}, {t: n for t, (_, n) in outputs.items()})
    return graph(
        into if tags else [e.split(":")[1] for e in into],
        out if tags else [e.split(":")[1] for e in out],
        session(model),
        inference(into, out, names),
    )


DUMMY = {"in": ("b", 1)}
GRAPHS: dict[str, str] = {
    **{
        f"dummy_{word.lower()}": one("dummy", {f"{word}_1": ("in", "b")}, {word: ("out", "a")})
        for word in ("OVTENSOR", "TENSOR", "TFTENSOR", "TFLITE_TENSOR")
    },
    "dummy_plain_tags": one("dummy", {"ANY": ("custom_dummy_input", "b")}, {"OTHER": ("custom_dummy_output", "a")}),
    "dummy_untagged_graph": one("dummy", {"OVTENSOR": ("in", "b")}, {"OVTENSOR": ("out", "a")}, tags=False),
    "sum": one("add", {"OVTENSOR1": ("in1", "input1"), "OVTENSOR2": ("in2", "input2")}, {"OVTENSOR": ("out", "sum")}),
    "copy": one("scalar", {"TFTENSOR": ("in", "model_scalar_input")}, {"TFTENSOR": ("out", "model_scalar_output")}),
    "upper": graph(["OVTENSOR:in"], ["OVTENSOR:out"], session("dummyUppercase"), inference(["B:in"], ["A:out"], "")),
    "no_tags": graph(["in"], ["out"], session("dummy", version=""), inference(["in"], ["out"], "")),
    "strings": one("passthrough_string", {"OVTENSOR": ("in", "my_name")}, {"OVTENSOR": ("out", "my_name")}),
    "two_nodes": graph(
        ["OVTENSOR:in"], ["OVTENSOR:out_1", "OVTENSOR1:out_2"], session("dummy"),
        inference(["OVTENSOR:in"], ["OVTENSOR:out_1"], maps({"OVTENSOR": "b"}, {"OVTENSOR": "a"})),
        inference(["OVTENSOR:in"], ["OVTENSOR:out_2"], maps({"OVTENSOR": "b"}, {"OVTENSOR": "a"})),
    ),
    "two_models": graph(
        ["OVTENSOR:in1", "OVTENSOR1:in2"], ["OVTENSOR:out"], session("dummy", "first"), session("add", "second"),
        inference(["OVTENSOR:in1"], ["OVTENSOR:more"], maps({"OVTENSOR": "b"}, {"OVTENSOR": "a"}), "first"),
        inference(["OVTENSOR1:more", "OVTENSOR2:in2"], ["OVTENSOR:out"], maps({"OVTENSOR1": "input1", "OVTENSOR2": "input2"}, {"OVTENSOR": "sum"}), "second"),
    ),
    "vectors": graph(
        ["OVTENSOR:in1", "OVTENSOR1:in2"], ["OVTENSOR:out"], session("two"), session("add", "last"),
        inference(["OVTENSOR:in1", "OVTENSOR1:in2"], ["OVTENSORS:both"], maps({"OVTENSOR": "x", "OVTENSOR1": "y"}, {}, 'output_order_list: ["minus", "plus"]')),
        inference(["TENSORS:both"], ["TENSOR:out"], maps({}, {"TENSOR": "sum"}, 'input_order_list: ["input2", "input1"]'), "last"),
    ),
    "joined": graph(
        ["OVTENSOR:in"], ["OVTENSOR:out"],
        """
node {
  calculator: "OVMSOVCalculator"
  input_stream: "B:in"
  output_stream: "A:out"
  node_options: { [type.googleapis.com / mediapipe.OVMSCalculatorOptions]: {
    servable_name: "dummy" servable_version: "1"
    tag_to_input_tensor_names { key: "B" value: "b" } tag_to_output_tensor_names { key: "A" value: "a" }
  } }
}
""",
    ),
    "adapter": graph(
        ["OVTENSOR:in"], ["OVTENSOR:out"],
        """
node {
  calculator: "OpenVINOInferenceAdapterCalculator"
  output_side_packet: "SESSION:session"
  node_options: { [type.googleapis.com / mediapipe.OpenVINOInferenceAdapterCalculatorOptions]: {
    model_path: "../models/dummy/1/model.xml" device: "CPU"
  } }
}
""",
        inference(["OVTENSOR:in"], ["OVTENSOR:out"], maps({"OVTENSOR": "b"}, {"OVTENSOR": "a"})),
    ),
    "passed": graph(
        ["OVTENSOR:in"], ["OVTENSOR:out"], session("dummy"),
        'node { calculator: "PassThroughCalculator" input_stream: "OVTENSOR:in" output_stream: "OVTENSOR:same" }',
        inference(["OVTENSOR:same"], ["OVTENSOR:out"], maps({"OVTENSOR": "b"}, {"OVTENSOR": "a"})),
    ),
}  # fmt: skip

B, A = {"OVTENSOR": "b"}, {"OVTENSOR": "a"}
# What is wrong at load: the graph, and what is said of it.
WRONG: dict[str, tuple[str, str]] = {
    "unknown_model": (one("dumy", {"OVTENSOR": ("in", "b")}, {"OVTENSOR": ("out", "a")}), "'dumy' is not a model of this server; its models: "),
    "unknown_input": (one("dummy", {"OVTENSOR": ("in", "c")}, {"OVTENSOR": ("out", "a")}), "'OVTENSOR:in' is 'c', and model 'dummy' has no such input; it has 'b' FP32 [1,10]"),
    "unknown_output": (one("dummy", {"OVTENSOR": ("in", "b")}, {"OVTENSOR": ("out", "z")}), "has no such output; it has 'a' FP32 [1,10]"),
    "missing_input": (one("add", {"OVTENSOR": ("in", "input1")}, {"OVTENSOR": ("out", "sum")}), "model 'add' also needs 'input2' FP32 [1,10]"),
    "unknown_tag": (graph(["OVTENSOR:in"], ["OVTENSOR:out"], session("dummy"), inference(["OVTENSOR:in"], ["OVTENSOR:out"], maps({"B": "b"}, A))), "'B' is not a tag of this node's input streams: OVTENSOR"),
    "needless_order": (graph(["OVTENSOR:in"], ["OVTENSOR:out"], session("dummy"), inference(["OVTENSOR:in"], ["OVTENSOR:out"], maps(B, A, 'input_order_list: "b"'))), "no input stream has a plural tag"),
    "missing_order": (graph(["OVTENSORS:in"], ["OVTENSOR:out"], session("dummy"), inference(["OVTENSORS:in"], ["OVTENSOR:out"], maps({}, A))), "input_order_list"),
    "plural_graph": (graph(["OVTENSORS:in"], ["OVTENSOR:out"], session("dummy"), inference(["OVTENSORS:in"], ["OVTENSOR:out"], maps({}, A, 'input_order_list: "b"'))), "the graph's stream 'in' has tensors, and the node's is"),
    "indexes": (graph(["in1", "in2"], ["out"], session("add"), inference(["OVTENSOR:0:in1", "OVTENSOR:1:in2"], ["OVTENSOR:out"], maps({"OVTENSOR": "input1"}, {"OVTENSOR": "sum"}))), "each tensor needs a tag of its own"),
    "no_name": (one("", {"OVTENSOR": ("in", "b")}, {"OVTENSOR": ("out", "a")}), "required, but empty"),
    "wrong_calculator": (graph(["OVTENSOR:in"], ["OVTENSOR:out"], session("dummy").replace("SessionCalculator\"", "SessionCalculatorWRONGNAME\""), inference(["OVTENSOR:in"], ["OVTENSOR:out"], maps(B, A))), "OpenVINOModelServerSessionCalculatorWRONGNAME"),
    "no_file": (graph(["OVTENSOR:in"], ["OVTENSOR:out"], GRAPHS["adapter"].split("OVTENSOR:out\"", 1)[1].replace("dummy/1", "dummy/9")), "model_path: "),
    "no_session": (graph(["OVTENSOR:in"], ["OVTENSOR:out"], inference(["OVTENSOR:in"], ["OVTENSOR:out"], maps(B, A))), "no node provides side packet 'session'"),
}  # fmt: skip

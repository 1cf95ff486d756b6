"""Plain models on OpenVINO: `model.py` reads and compiles one and converts the tensors of calls, and
`engine.py` runs them on a pool of infer requests. Only files of this package import openvino."""

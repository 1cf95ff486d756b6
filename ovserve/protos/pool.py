"""The descriptor pool of our messages; every generated module adds itself here.

Private, because our messages carry MediaPipe's public names: in protobuf's process-wide pool a user's
calculator that imports pip's `mediapipe` (or tritonclient, or TensorFlow Serving's API) would end the process
with a duplicate symbol. A private pool starts empty, hence the well-known types: `any.proto`, `wrappers.proto`, and `struct.proto`, in which a calculator without
an option message of its own takes its options.

An option message of an out-of-tree calculator becomes known to graph.pbtxt by being added to this pool as an
extension of `mediapipe.CalculatorOptions`.
"""

from __future__ import annotations

from google.protobuf import any_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
for _file in (any_pb2, wrappers_pb2, struct_pb2):
    POOL.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)

"""The gRPC transport: KServe's and Triton's inference service, TensorFlow Serving's ModelService, health and
reflection, in the server's own event loop. It is the only user of grpc.
"""

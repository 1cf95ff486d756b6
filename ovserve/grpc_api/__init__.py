"""The gRPC front: KServe's and Triton's inference service, TensorFlow Serving's ModelService, health and
reflection, in the server's own event loop. The only user of grpc.
"""

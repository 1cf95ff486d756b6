"""MediaPipe's graph messages and OVMS's option messages; `make proto` writes the *_pb2 files from proto/.

`graph/` and `calculators/` import the modules; `pool.py` says where their descriptors live and why.
"""

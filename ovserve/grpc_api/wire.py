"""Decide which messages of infer calls are read in the event loop.

protobuf takes 0.1 us for each byte of a map and Python more for each element of a typed tensor, so a message
of 32 MB may take seconds. Raw tensors cost nothing. The top-level fields of a message show how much of it
they are, without parsing their content.
"""

from __future__ import annotations

from ovserve.api.kserve.tensor import BYTES
from ovserve.protos import kserve_pb2 as pb

SMALL = 64 * 1024  # bytes outside of raw tensors, or of elements that are read one by one
FIELDS = 4096  # top-level fields of a message
RAW = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_infer(data: bytes) -> pb.ModelInferRequest | bytes:
    """Return the message; or its bytes, for a body process, if it takes long to read."""
    if len(data) > SMALL and not _is_light(data):
        return data
    message = pb.ModelInferRequest.FromString(data)
    if len(data) > SMALL and any(tensor.datatype == BYTES for tensor in message.inputs):
        return data
    return message


def _is_light(data: bytes) -> bool:
    at, other, end = 0, 0, len(data)
    for _ in range(FIELDS):
        if at >= end:
            return True
        begin = at
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            return False
        other += 0 if tag >> 3 == RAW else at - begin
        if other > SMALL:
            return False
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at

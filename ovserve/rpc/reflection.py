"""Server reflection: grpcurl, Postman and the like read the services here. Built by `server.py`.

The library looks descriptors up in a pool. Ours are in a private one, those of health and of reflection
itself in protobuf's; so it is given a third, which holds copies of both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.reflection import aio

from ovserve.rpc.service import Context


class Reflection:
    """`names` are the services to tell, `files` those that describe them."""

    def __init__(self, names: Iterable[str], files: Iterable[FileDescriptor]) -> None:
        pool = DescriptorPool()
        for file in files:
            _copy(file, pool)
        self._servicer = aio.ReflectionServicer(names, pool=pool)

    async def ServerReflectionInfo(
        self, requests: AsyncIterator[pb.ServerReflectionRequest], context: Context
    ) -> None:
        answers: Any = self._servicer.ServerReflectionInfo(requests, context)  # its stub is wrong
        async for response in answers:
            await context.write(response)


def _copy(file: FileDescriptor, pool: DescriptorPool) -> None:
    """What it imports first. Adding the same file twice is no error."""
    for dependency in file.dependencies:
        _copy(dependency, pool)
    pool.AddSerializedFile(file.serialized_pb)

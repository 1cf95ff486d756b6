"""Server reflection, with which grpcurl, Postman and similar tools read the services.

The library looks descriptors up in a pool. Ours are in a private one; those of health and of reflection
itself are in protobuf's. So it gets a third pool, which holds copies of both.

There are two versions of the service, v1 and the older v1alpha, with the same messages under other names.
Clients ask for v1 first. The library has only v1alpha, so v1 is built from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.reflection import aio

from ovserve.grpc_api.service import Context

_FILE: Any = pb.DESCRIPTOR  # its stub has its own types
ALPHA: ServiceDescriptor = _FILE.services_by_name["ServerReflection"]


def _stable() -> ServiceDescriptor:
    """Return v1's descriptor, built from v1alpha's file: package and type names differ, numbers do not."""
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = "grpc.reflection.v1"
    for message in file.message_type:
        for field in (f for f in message.field if f.type_name):
            field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
        method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found: ServiceDescriptor = pool.FindServiceByName("grpc.reflection.v1.ServerReflection")
    return found


STABLE = _stable()


class Reflection:
    """Both versions of reflection. `names` are the services to list, `files` those that describe them."""

    def __init__(self, names: Iterable[str], files: Iterable[FileDescriptor]) -> None:
        pool = DescriptorPool()
        for file in files:
            _copy(file, pool)
        self._servicer = aio.ReflectionServicer(names, pool=pool)

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> None:
        # The library's answers contain the request, as v1alpha's message.
        asked = (pb.ServerReflectionRequest.FromString(r.SerializeToString()) async for r in requests)
        answers: Any = self._servicer.ServerReflectionInfo(asked, context)  # its stub is wrong
        async for response in answers:
            await context.write(response)


def _copy(file: FileDescriptor, pool: DescriptorPool) -> None:
    """Copy a file after its imports. Adding the same file twice is not an error."""
    for dependency in file.dependencies:
        _copy(dependency, pool)
    pool.AddSerializedFile(file.serialized_pb)

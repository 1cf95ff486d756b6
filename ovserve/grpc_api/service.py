"""Handlers of a service, made from its descriptor, and the border where every exception becomes a status.

A servicer has one coroutine for each method of the service, under the method's name. With one response it
takes the request and returns the response. With a stream of them it takes an iterator of requests, or the one
request, and the context, to which it writes.

There are no generated stubs: they would put their descriptors into protobuf's process-wide pool (see
`protos/pool.py`).

Decide which messages of infer calls are read in the event loop.

protobuf takes 0.1 us for each byte of a map and Python more for each element of a typed tensor, so a message
of 32 MB may take seconds. Raw tensors cost nothing. The top-level fields of a message show how much of it
they are, without parsing their content.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import msgspec
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from ovserve.access import NOBODY, AccessLog, Caller, Guard, RequestContext, calling, presented_key
from ovserve.api.kserve.tensor import BYTES
from ovserve.errors import (
    INTERNAL_MESSAGE,
    Internal,
    InvalidArgument,
    OvserveError,
    Unauthenticated,
    for_log,
    public,
)
from ovserve.grpc_api.errors import REQUEST_ID, details, sentence, status_of
from ovserve.log import request_id
from ovserve.protos import kserve_pb2 as pb

log = logging.getLogger(__name__)

SMALL_REQUEST = 64 * 1024  # bytes outside of raw tensors, or of elements that are read one by one
MAX_FIELDS = 4096  # top-level fields of a message
RAW = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_infer(data: bytes) -> pb.ModelInferRequest | bytes:
    """Return the message; or its bytes, for a body process, if it takes long to read."""
    if len(data) > SMALL_REQUEST and not _is_light(data):
        return data
    message = pb.ModelInferRequest.FromString(data)
    if len(data) > SMALL_REQUEST and any(tensor.datatype == BYTES for tensor in message.inputs):
        return data
    return message


def _is_light(data: bytes) -> bool:
    at, other, end = 0, 0, len(data)
    for _ in range(MAX_FIELDS):
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
        if other > SMALL_REQUEST:
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


Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[..., Awaitable[Any]]

# Probes call these every few seconds; a line for each would hide the others.
QUIET = {"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"}
# Probes have no keys. These calls report that the server is there, and whether it is ready.
OPEN = {"ServerLive", "ServerReady", "Check", "Watch"}

# How requests that may be large are read; the others have a few fields.
READERS: dict[str, Callable[[bytes], Any]] = {"ModelInferRequest": read_infer}

FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN}


def service_handler(
    descriptor: ServiceDescriptor, servicer: object, guard: Guard, access_log: AccessLog
) -> grpc.GenericRpcHandler:
    """Build the handlers. Raises AttributeError for a method that the servicer lacks."""
    handlers = {
        m.name: _handler(m, _border(m, getattr(servicer, m.name), guard, access_log))
        for m in descriptor.methods
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _handler(method: MethodDescriptor, bordered: Method) -> grpc.RpcMethodHandler[Any, Any]:
    name = method.input_type.name
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = kinds[
        method.client_streaming, method.server_streaming
    ]
    return make(
        bordered,
        request_deserializer=_reader(
            READERS.get(name) or GetMessageClass(method.input_type).FromString, method.input_type.full_name
        ),
        response_serializer=lambda message: message.SerializeToString(),
    )


class _Malformed(msgspec.Struct, frozen=True):
    """Stands for a message that could not be read. The library would log a traceback and answer UNKNOWN."""

    name: str

    def error(self) -> InvalidArgument:
        return InvalidArgument(f"the request is not a valid message of type {self.name}")


def _reader(decode: Callable[[bytes], Any], name: str) -> Callable[[bytes], Any]:
    malformed = _Malformed(name)

    def reader(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return malformed

    return reader


def _checked(request: Any) -> Any:
    """Return a request, or the iterator of a stream of them. Raises InvalidArgument, as the iterator does."""
    if isinstance(request, _Malformed):
        raise request.error()
    return _each(request) if isinstance(request, AsyncIterable) else request


async def _each(requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)


def _border(descriptor: MethodDescriptor, method: Method, guard: Guard, access_log: AccessLog) -> Method:
    name = descriptor.name

    async def bordered(request: Any, context: Context) -> Any:
        id_ = _id_of(context)
        token = request_id.set(id_)
        context.set_trailing_metadata(((REQUEST_ID, id_),))
        headers = {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        call, status = RequestContext(NOBODY), grpc.StatusCode.CANCELLED  # unless known otherwise
        call.remote = context.peer()
        call.patience = context.time_remaining()
        access_log.begin(call, "grpc", name, id_)
        try:
            try:
                with calling(call):
                    call.caller = _caller(name, headers, guard)
                    checked = _checked(request)
                    response = await (
                        method(checked, context) if descriptor.server_streaming else method(checked)
                    )
                status = grpc.StatusCode.OK
                return response
            except OvserveError as exc:
                error = exc
            except grpc.aio.UsageError:
                return None  # the client disconnected before the write
            except Exception as exc:
                log.exception("unexpected %s", type(exc).__name__)
                error = Internal(INTERNAL_MESSAGE)
            if error.kind == "internal":
                log.error("%s", error, exc_info=for_log(error))
            public_error = call.error = public(error)
            status = status_of(public_error)
            await context.abort(status, sentence(public_error), ((REQUEST_ID, id_), *details(public_error)))
        finally:
            access_log.log(
                call,
                "grpc",
                name,
                status.name,
                failed=status in FAULTS,
                quiet=name in QUIET,
                request_id=id_,
                headers=headers,
            )
            request_id.reset(token)

    return bordered


def _caller(name: str, headers: Mapping[str, str], guard: Guard) -> Caller:
    """Return the caller. Raises Unauthenticated. `serving/` checks the rights, for all transports alike."""
    try:
        return guard.caller(presented_key(headers))
    except Unauthenticated:
        if name in OPEN:
            return NOBODY
        raise


def _id_of(context: Context) -> str:
    text = next((v for k, v in context.invocation_metadata() or () if k == REQUEST_ID), "")
    if isinstance(text, str) and 0 < len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    return uuid.uuid4().hex

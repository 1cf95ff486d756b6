"""Messages on a stream socket: four bytes of length, then msgpack.

The server's end feeds whatever arrived to a FrameDecoder; the engine's end is a Channel, which blocks. A
length over MAX_FRAME or bytes that are not a known message raise FrameError at once: waiting for the rest of
an invalid frame would be a hang.

The transport is a socketpair and not zmq or multiprocessing, because end of file is the heartbeat.
"""

from __future__ import annotations

import select
import socket
from typing import Any, Generic, TypeVar

import msgspec

from ovserve.errors import InvalidArgument, OvserveError, PayloadTooLarge

HEADER_BYTES = 4
MAX_FRAME = 256 * 1024 * 1024
READ_BYTES = 256 * 1024
COPIED_BYTES = 64 * 1024  # so many are copied to send a frame at once

_EMPTY, _BIN32 = b"\xc4\x00", b"\xc6"  # msgpack's empty bytes, and bytes with a length of 32 bits

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class FrameError(ValueError):
    """The peer does not speak the protocol, or a message is too large for it."""


UNSENDABLE = (UnicodeEncodeError, OverflowError, FrameError, msgspec.MsgspecError)  # what `encode` raises


def unsendable(what: str, error: Exception) -> OvserveError:
    """Return the client's error for a message that `encode` has refused."""
    kind = PayloadTooLarge if isinstance(error, FrameError) else InvalidArgument
    return kind(f"{what} cannot be sent to the engine: {error}")


def encode(message: msgspec.Struct) -> bytes:
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(message, frame, HEADER_BYTES)
    size = len(frame) - HEADER_BYTES
    if size > MAX_FRAME:
        raise FrameError(f"a message of {size} bytes is over the limit of {MAX_FRAME}")
    frame[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES, "big")
    return bytes(frame)


def frame_parts(message: msgspec.Struct, last: bytes = b"") -> tuple[bytes, ...]:
    """Return a frame, in parts to send one after the other.

    `last` takes the place of the message's last field, which is empty bytes. It is not copied if it is large.
    """
    payload = _encoder.encode(message)
    size = len(payload) + len(last)
    if size > MAX_FRAME - HEADER_BYTES:  # the length of `last` takes three more bytes
        raise FrameError(f"a message of {size} bytes is over the limit of {MAX_FRAME}")
    if last:
        assert payload.endswith(_EMPTY), "the last field is not empty bytes"
        payload = payload[: -len(_EMPTY)] + _BIN32 + len(last).to_bytes(4, "big")
        size = len(payload) + len(last)
    head = size.to_bytes(HEADER_BYTES, "big") + payload
    return (head + last,) if len(last) <= COPIED_BYTES else (head, last)


class FrameDecoder(Generic[T]):
    """Bytes in, whole messages out; it keeps an incomplete rest."""

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        buffer = self._buffer
        buffer += data
        messages: list[T] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            size = int.from_bytes(buffer[start : start + HEADER_BYTES], "big")
            if size > MAX_FRAME:
                raise FrameError(f"a frame of {size} bytes was announced, over the limit of {MAX_FRAME}")
            end = start + HEADER_BYTES + size
            if len(buffer) < end:
                break
            with memoryview(buffer) as view, view[start + HEADER_BYTES : end] as body:
                messages.append(self._decode(body))
            start = end
        del buffer[:start]
        return messages

    def _decode(self, body: memoryview) -> T:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise FrameError(f"malformed frame: {error}") from None


class Channel(Generic[T]):
    """The blocking end, for the main thread of the engine."""

    def __init__(self, sock: socket.socket, message_type: Any) -> None:
        self._socket = sock
        self._frames: FrameDecoder[T] = FrameDecoder(message_type)

    def receive(self, *, block: bool) -> list[T]:
        """Return all messages that have arrived; with `block` at least one. Raises EOFError when the peer is
        gone."""
        messages: list[T] = []
        while True:
            flags = 0 if block and not messages else socket.MSG_DONTWAIT
            try:
                data = self._socket.recv(READ_BYTES, flags)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the other end of the engine socket is closed")
            messages += self._frames.feed(data)
            if messages and len(data) < READ_BYTES:
                return messages  # all that there was

    def receive_within(self, seconds: float) -> list[T]:
        """Return messages that arrive in that time, possibly none; it returns at the first arrival."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return self.receive(block=False) if readable else []

    def send(self, *messages: msgspec.Struct) -> None:
        """Send messages. Blocks while the peer does not read, because the engine should wait then."""
        if messages:
            self._socket.sendall(b"".join(map(encode, messages)))

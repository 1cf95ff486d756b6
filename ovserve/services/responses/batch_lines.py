"""The lines of a batch's input file: checked as live requests are, in a process of `sandbox/bodies.py`.

A part of the file is checked at a time, so the process's bounds of time and memory hold, and nothing has the
size of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Raw

from ovserve.api.openai.batches import BatchError, Line
from ovserve.api.openai.body import decode_struct, unique_members
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument, shortened
from ovserve.kinds.encoders.node import ClassificationCalculatorOV, EmbeddingsCalculatorOV, RerankCalculatorOV
from ovserve.kinds.payload import Decoder
from ovserve.kinds.text.endpoints import ENDPOINTS
from ovserve.services.responses.batch_rows import InputLine

PART_BYTES, PART_LINES = 4 << 20, 1000  # checked in one call
PREFIX_BYTES = 512  # of a prompt, by which lines are put next to each other
# What a prompt begins with, in the order of most chat templates.
PROMPT_FIELDS = ("model", "tools", "instructions", "messages", "prompt", "query", "input")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
VERSION_PREFIXES = ("/v3/v1/", "/openai/v1/", "/openai/", "/v3/", "/v1/", "/")  # the longest first

DECODERS: dict[str, Decoder] = {
    **ENDPOINTS,
    **EmbeddingsCalculatorOV.endpoints,
    **RerankCalculatorOV.endpoints,
    **ClassificationCalculatorOV.endpoints,
}
_line = msgspec.json.Decoder(Line)


class Part(NamedTuple):
    """The content of a part of the file. `models`: by name, the first line that names it. `end`: the byte
    behind it; `last`: the number of lines until there, empty ones included."""

    lines: list[InputLine]
    models: dict[str, int]
    errors: list[BatchError]
    end: int
    last: int


class LineFault(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def endpoint_of(url: str) -> str:
    """Return the path without its version, such as chat/completions."""
    return next((url.removeprefix(p) for p in VERSION_PREFIXES if url.startswith(p)), url)


def check_part(path: str, start: int, count: int, endpoint: str, max_line_bytes: int) -> Part:
    """Check the lines from byte `start` on, which is behind line `count`."""
    part = Part([], {}, [], start, count)
    lines, models, errors, end = part.lines, part.models, part.errors, start
    with Path(path).open("rb") as file:
        file.seek(start)
        while end - start < PART_BYTES and count - part.last < PART_LINES:
            data = file.readline(max_line_bytes + 2)
            if not data:
                break
            at, count, end = end, count + 1, end + len(data)
            if len(data) > max_line_bytes and not data.endswith(b"\n"):
                while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                    end += len(rest)
                end += len(rest)
                message = f"the line has more than {max_line_bytes} bytes"
                errors.append(BatchError(code="invalid_request", message=message, line=count))
                continue
            if not at:
                data = data.removeprefix(BYTE_ORDER_MARK)
            if not data.strip():
                continue
            try:
                line, model = check_line(data, endpoint)
            except LineFault as fault:
                errors.append(
                    BatchError(code=fault.code, message=fault.message, line=count, param=fault.param)
                )
                continue
            models.setdefault(model, count)
            lines.append(InputLine(count, at, end - at, line.custom_id, _prefix(line)))
    return part._replace(end=end, last=count)


def check_line(data: bytes, endpoint: str) -> tuple[Line, str]:
    """Return a line and the model that it names. Raises LineFault that names the field."""
    try:
        members = unique_members(data)
    except InvalidArgument as error:
        raise LineFault(
            "invalid_json_line", error.message.replace("the body", "the line"), error.param
        ) from None
    for name in Line.__struct_fields__:
        if members.get(name) is None:
            raise LineFault("missing_required_parameter", f"{name}: required", name)
    for name in members:
        if name not in Line.__struct_fields__:
            raise LineFault(
                "invalid_request", f"{shortened(name)!r} is not a field of a line", shortened(name)
            )
    line = _decoded(data)
    if endpoint_of(line.url) != endpoint:
        raise LineFault("url_mismatch", f"url: the batch is for /v1/{endpoint}, got {line.url!r}", "url")
    body = members["body"]
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise LineFault(
            "missing_required_parameter", "body.model: expected the name of a model", "body.model"
        )
    for name, code in (("stream", "streaming_unsupported"), ("background", "invalid_request")):
        if body.get(name):
            raise LineFault(code, f"body.{name}: a batch has whole answers only", f"body.{name}")
    if (decoder := DECODERS.get(endpoint)) is not None:
        try:
            decoder.decode(body_of(line))
        except InvalidArgument as error:
            param = f"body.{error.param}" if error.param else "body"
            message = error.message if error.param is None else f"body.{error.message}"
            raise LineFault("invalid_request", message, param) from None
    return line, model


def read_line(data: bytes) -> Line:
    """Return a line that was checked before."""
    return _line.decode(data.removeprefix(BYTE_ORDER_MARK))


def body_of(line: Line, **more: Raw) -> bytes:
    return encode({**line.body, **more})


def _decoded(data: bytes) -> Line:
    try:
        return decode_struct(data, _line)
    except InvalidArgument as error:
        if error.param is None:  # such as NaN in the body
            raise LineFault("invalid_json_line", error.message.replace("the body", "the line")) from None
        raise LineFault("invalid_request", error.message, error.param) from None


def _prefix(line: Line) -> bytes:
    parts = (bytes(line.body[name]) for name in PROMPT_FIELDS if name in line.body)
    return b"\0".join(parts)[:PREFIX_BYTES]

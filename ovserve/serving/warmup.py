"""Requests that a graph answers before it is ready: the file `warmup_file` of its entry, or warmup.jsonl next
to the graph.

Each line is a body of one of the graph's endpoints, or an object as in OpenAI's batch files, whose `url` says
which: {"url": "/v1/chat/completions", "body": {...}}. A body needs no `model`. A plain model takes KServe's
bodies. The graph is not served if one of them fails.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec

from ovserve.access import as_system
from ovserve.api.kserve.json_body import decode_infer
from ovserve.errors import LoadError, OvserveError
from ovserve.kinds.payload import HttpPayload
from ovserve.serving.endpoints import matches
from ovserve.serving.servable import Servable
from ovserve.serving.spec import ServableSpec

WARMUP_FILE = "warmup.jsonl"
MOST_BYTES, MOST_LINES = 32 << 20, 1000
MAX_SHOWN_CHARACTERS = 300  # characters of an answer that is an error
INFER = "infer"
ENDPOINTS = (  # of bodies without a url, by a field that they have
    ("messages", "chat/completions"),
    ("queries", "score"),
    ("text_1", "score"),
    ("data_1", "score"),
    ("documents", "rerank"),
    ("prompt", "completions"),
    ("prompt", "images/generations"),
    ("input", "embeddings"),
    ("input", "classify"),
    ("input", "audio/speech"),
)
_URL = re.compile(r"(?:https?://[^/]+)?/?(?:v3/v1|v3|v1)/(?P<endpoint>.+)")
_INFER_URL = re.compile(r"(?:https?://[^/]+)?/?v2/models/.+/infer")


async def warm_up(servable: Servable, spec: ServableSpec, seconds: float) -> None:
    """Send the requests of the file, if there is one. Raises LoadError that names the line of one that fails,
    or that runs after `seconds`."""
    path = spec.warmup or spec.base / WARMUP_FILE
    lines = await asyncio.to_thread(_lines, path, required=spec.warmup is not None)
    number = 0
    try:
        async with asyncio.timeout(seconds):
            for line in lines:
                number += 1
                if line.strip():
                    with as_system():
                        await _send(servable, line)
    except TimeoutError:
        raise LoadError(
            f"the requests were not answered after {seconds:g} s", file=str(path), line=number
        ) from None
    except OvserveError as error:
        raise LoadError(error.message, file=str(path), line=number) from error


def _lines(path: Path, *, required: bool) -> list[bytes]:
    """Return the lines of the file; none if there is no file and none is required."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise LoadError(f"expected at most {MOST_BYTES} bytes, got {size}", file=str(path))
        lines = path.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):  # the base of a plain model may be its file
        if not required:
            return []
        raise LoadError("the file does not exist", file=str(path), field="warmup_file") from None
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(path), field="warmup_file") from error
    if len(lines) > MOST_LINES:
        raise LoadError(f"expected at most {MOST_LINES} lines, got {len(lines)}", file=str(path))
    return lines


async def _send(servable: Servable, line: bytes) -> None:
    """Send one request and read its whole answer. Raises OvserveError, also if that is an error."""
    try:
        request = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"expected a JSON object: {error}") from None
    endpoint, body = _endpoint(servable, request)
    encoded = msgspec.json.encode({"model": servable.name} | body if endpoint != INFER else body)
    if endpoint == INFER and servable.model is not None:
        infer_request = decode_infer(servable.name, servable.version, encoded, None).request
        infer_request.check_inputs()
        with servable.lease():
            await servable.model.infer(infer_request.inputs, infer_request.outputs)
        return
    async with servable.start(HttpPayload(endpoint, encoded)) as answer:
        first = await answer.first()
        if first.status >= 400:
            text = first.body.decode("utf-8", "replace")[:MAX_SHOWN_CHARACTERS]
            raise LoadError(f"{endpoint} answered with status {first.status}: {text}")
        more = first.more
        while more:
            more = (await (answer.next_events() if first.events else answer.next())) is not None


def _endpoint(servable: Servable, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the endpoint of a line, and the body. Raises LoadError."""
    if "url" in request:
        url, body = request["url"], request.get("body")
        match = _URL.fullmatch(url) if isinstance(url, str) else None
        if not isinstance(body, dict):
            raise LoadError("body: expected an object")
        if isinstance(url, str) and _INFER_URL.fullmatch(url):
            return INFER, body
        if match is None:
            raise LoadError(f"url: expected a path such as /v1/chat/completions, got {url!r}")
        return match["endpoint"], body
    if servable.model is not None:
        return INFER, request
    for field, endpoint in ENDPOINTS:
        if field in request and (not servable.endpoints or matches(endpoint, servable.endpoints)):
            return endpoint, request
    served = ", ".join(sorted(servable.endpoints)) or "any"
    raise LoadError(f'no endpoint of the graph ({served}) is known to take it: add "url"')

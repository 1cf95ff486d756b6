"""A connection to an MCP server: started by the first call, kept, and started again after it ended.

The official client does the protocol. The transport over stdin and stdout is our own, for three reasons. It
bounds a message, where the package's reads a line of any length and copies it again for each piece. The child
ends with this process even after a kill -9. The child's stderr is in our log.

The package is imported by the first connection, on a thread: that takes 1.4 s.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from ovserve.api.openai.responses.tools import McpTool
from ovserve.children import bound_command
from ovserve.errors import described

log = logging.getLogger(__name__)

# Of a message. No other request goes on while its JSON is decoded: 11 ms of a text, 0.8 s of 200,000 items.
MESSAGE_BYTES = 4 << 20
MAX_TOOLS = 256  # of one server
LOG_CHARACTERS = 500  # of a line that a child writes to stderr
STOP_SECONDS = 2.0  # until a child that does not end is asked to, and again until it is killed
INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")


class McpError(Exception):
    """A call of a tool, or the server itself, failed."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The program that is started, or the URL. Its repr may be logged, without env and headers."""

    label: str
    command: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"{self.label}: {self.url.partition('?')[0] or self.command[0]}"


class McpConnection:
    """One server. Calls of several requests share the connection."""

    def __init__(self, target: Target, connect_seconds: float) -> None:
        self._target, self._seconds = target, connect_seconds
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._end = asyncio.Event()
        self._why = ""  # the connection ended

    async def tools(self) -> tuple[McpTool, ...]:
        """List the tools; a connection that fails at it is replaced once. Raises McpError."""
        may_repeat = self._task is not None
        while True:
            try:
                return await self._list()
            except McpError:
                await self.close()
                if not may_repeat:
                    raise
            may_repeat = False
            log.info("MCP server %s: it is started again", self._target.label)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the result as text. Raises McpError."""
        client = await self._client()
        try:
            result = await client.call_tool(name, arguments)
        except Exception as error:
            raise self._failure(error) from error
        content = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in result.content]
        text = "\n".join(map(_text, content))
        if not content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if result.is_error:
            raise McpError(text)
        return text

    async def close(self) -> None:
        """End the connection, and the child."""
        task, self._task = self._task, None
        if task is None:
            return
        self._end.set()
        await asyncio.wait({task}, timeout=4 * STOP_SECONDS)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_SECONDS)

    async def _list(self) -> tuple[McpTool, ...]:
        client = await self._client()
        tools: list[McpTool] = []
        cursor = None
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    page = await client.list_tools(cursor=cursor)
                    for tool in page.tools:
                        notes = tool.annotations and tool.annotations.model_dump(
                            mode="json", by_alias=True, exclude_none=True
                        )
                        tools.append(McpTool(tool.name, tool.description, tool.input_schema, notes))
                    cursor = page.next_cursor
                    if len(tools) > MAX_TOOLS:
                        raise McpError(f"it has more than {MAX_TOOLS} tools")
                    if cursor is None:
                        return tuple(tools)
        except TimeoutError:
            raise McpError(f"it listed no tools within {self._seconds:g} s") from None
        except McpError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> McpError:
        return McpError(self._why or described(error))

    async def _client(self) -> Any:
        if self._task is None or self._task.done():
            self._end, self._why = asyncio.Event(), ""
            ready = self._ready = asyncio.get_running_loop().create_future()
            name = f"MCP server {self._target.label}"
            self._task = asyncio.create_task(self._run(ready, self._end), name=name)
        assert self._ready is not None, "it was made with the task"
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise McpError(f"it did not answer within {self._seconds:g} s") from None

    async def _run(self, ready: asyncio.Future[Any], end: asyncio.Event) -> None:
        """Hold the connection; the client's context must be entered and left by one task."""
        error: BaseException = McpError("the connection was closed")
        try:
            await asyncio.to_thread(importlib.import_module, "mcp")
            import mcp

            def ended(why: str) -> None:
                self._why = self._why or why
                end.set()

            transport = _http(self._target) if self._target.url else _stdio(self._target, ended)
            async with mcp.Client(transport, cache=None) as client:
                ready.set_result(client)
                log.info("MCP server %s: connected", self._target.label)
                await end.wait()
        except Exception as exc:  # noqa: BLE001  of any library: the callers get it
            error = McpError(self._why or described(_first(exc)))
            log.warning("MCP server %s: %s", self._target.label, error)
        finally:
            if not ready.done():
                ready.set_exception(error)
                ready.exception()  # no one may wait for it


def _first(error: BaseException) -> BaseException:
    """Return what a task group collected first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(item: Mapping[str, Any]) -> str:
    """Return an item of a result as text for the model, which sees no pictures of tools."""
    resource = item.get("resource") or {}
    text = item.get("text", resource.get("text"))
    if text is not None:
        return str(text)
    kind = item.get("mimeType") or resource.get("mimeType") or item["type"]
    data = item.get("data") or resource.get("blob") or ""
    return f"[{kind}, {len(data) * 3 // 4} bytes]" if data else f"[{kind}: {item.get('uri', '')}]"


@asynccontextmanager
async def _http(target: Target) -> AsyncIterator[Any]:
    """The package's transport over streamable HTTP, each body of which is bounded."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each URL

    class Body(httpx2.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for chunk in self._inner:
                length += len(chunk)
                if length > MESSAGE_BYTES:
                    raise httpx2.ReadError(f"the answer has more than {MESSAGE_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    class Bounded(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await super().handle_async_request(request)
            if request.method == "POST":  # that of a GET has all notifications
                response.stream = Body(response.stream)
            return response

    timeout = httpx2.Timeout(30.0, read=None)  # `call_seconds` bounds a call
    async with (
        httpx2.AsyncClient(headers=dict(target.headers), timeout=timeout, transport=Bounded()) as http,
        streamable_http_client(target.url, http_client=http, max_sse_event_size=MESSAGE_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def _stdio(target: Target, ended: Callable[[str], None]) -> AsyncIterator[Any]:
    """Messages as lines over the stdin and stdout of a child. `ended` is called when there are no more."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    # One that hangs does not see that its stdin is closed.
    child = await asyncio.create_subprocess_exec(
        *bound_command(target.command, descendants=True),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: os.environ[name] for name in INHERITED if name in os.environ} | dict(target.env),
        cwd=target.cwd or None,
        limit=MESSAGE_BYTES,
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None  # noqa: PT018
    stdin, stdout, stderr = child.stdin, child.stdout, child.stderr
    received, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, outgoing_messages = anyio.create_memory_object_stream[Any](0)

    def parsed(line: bytes) -> SessionMessage | Exception:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error

    async def read() -> None:
        why = "the server's process ended"
        try:
            async with received:
                while line := await stdout.readuntil(b"\n"):
                    await received.send(parsed(line))
        except asyncio.IncompleteReadError:
            pass
        except asyncio.LimitOverrunError:
            why = f"the server sent a message of more than {MESSAGE_BYTES} bytes"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            why = ""
        finally:
            ended(why)

    async def write() -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            async with outgoing_messages:
                async for one in outgoing_messages:
                    text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                    stdin.write(text.encode() + b"\n")
                    await stdin.drain()

    tasks = [asyncio.create_task(work) for work in (read(), write(), _report(target.label, stderr))]
    try:
        yield incoming, outgoing
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for stream in (received, incoming, outgoing, outgoing_messages):
            stream.close()
        await _stop(child)
        # A pipe with a message that was too long is not read to its end, and nothing public closes it.
        child._transport.close()  # type: ignore[attr-defined]


async def _report(label: str, stderr: asyncio.StreamReader) -> None:
    """Log what a child writes to stderr."""
    with suppress(ValueError):  # a line of more than MESSAGE_BYTES
        while line := await stderr.readline():
            text = line.decode(errors="replace").rstrip()[:LOG_CHARACTERS]
            log.info("MCP server %s: %s", label, text)


async def _stop(child: asyncio.subprocess.Process) -> None:
    """End a child and those that it started: by closing its stdin, else by signals."""
    assert child.stdin is not None, "it is a pipe"
    child.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
        if child.returncode is not None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(_exited(child), STOP_SECONDS)
            return


async def _exited(child: asyncio.subprocess.Process) -> None:
    """Wait for the process alone: `wait()` also waits for the pipes, which its own children may hold."""
    while child.returncode is None:  # noqa: ASYNC110  asyncio reports it in no other way
        await asyncio.sleep(0.01)

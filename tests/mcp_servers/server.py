"""An MCP server of the official package, for the tests: `server.py`, or `server.py PORT` over HTTP.

It is served as a child of the server under test; `pid` names its process.
"""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer

app = MCPServer("test tools")
LARGE = 10_000_000  # characters


@app.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@app.tool()
def pid() -> str:
    """Return the id of this process."""
    return str(os.getpid())


@app.tool()
def environment(name: str) -> str:
    """Return a variable of the environment."""
    return os.environ.get(name, "none")


@app.tool()
def wrong() -> str:
    """Fail."""
    raise ValueError("the tool is broken")


@app.tool()
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


@app.tool()
def die() -> str:
    """End the process."""
    os._exit(3)


@app.tool()
def large() -> str:
    """Return 10 MB."""
    return "x" * LARGE


@app.tool()
def picture() -> Image:
    """Return an image."""
    return Image(data=b"\x89PNG" + bytes(95), format="png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        app.run("stdio")

"""Cancel a background response that another server on the same store generates.

The request is a row in the store. The server that runs the response looks for such rows with each checkpoint
(`checkpoint.py`), ends the response and writes how it ended, which is read here.
"""

from __future__ import annotations

import asyncio
import time

from ovserve.errors import Unavailable
from ovserve.responses.store import Record, ResponseStore

LOOK_SECONDS = 0.2
MOST_SECONDS = 10.0  # several checkpoints of the other server


async def cancel_elsewhere(store: ResponseStore, record: Record) -> Record | None:
    """The response as it ended; None if it was deleted meanwhile. Raises Unavailable, StoreError."""
    await store.request_cancel(record.owner, record.id)
    deadline = time.monotonic() + MOST_SECONDS
    found: Record | None = record
    while found is not None and found.server:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"response {record.id!r} runs on another server, which has not cancelled it yet",
                retry_after=1.0,
            )
        await asyncio.sleep(LOOK_SECONDS)
        found = await store.get(record.owner, record.id)
    return found

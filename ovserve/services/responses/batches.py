"""BatchService: OpenAI's Files and Batches over the file of stored responses, for `http/routes/responses.py`.

Every method takes the `owner`, the name behind the API key: no one sees the batches of others.
"""

from __future__ import annotations

import hashlib
import time

import msgspec

from ovserve.access import Guard
from ovserve.api.openai.batches import Batch, BatchPage, BatchRequest
from ovserve.errors import InvalidArgument, NotFound
from ovserve.services.responses.batch_lines import BatchBounds, endpoint_of
from ovserve.services.responses.batch_rows import Batches, BatchRecord
from ovserve.services.responses.batch_runner import AnswerError, BatchRunner
from ovserve.services.responses.files import Files, new_id, stored, unknown_file
from ovserve.services.responses.service import ResponsesService
from ovserve.serving.interface import Interface, matches
from ovserve.serving.manager import Manager

ENDPOINTS = ("chat/completions", "completions", "responses", "embeddings", "rerank", "score")
NEVER = ("audio/", "images/")  # their bodies or answers are files


class BatchService:
    def __init__(
        self,
        manager: Manager,
        responses: ResponsesService,
        files: Files,
        guard: Guard,
        answer_error: AnswerError,
        bounds: BatchBounds | None = None,
    ) -> None:
        self._manager, self.files = manager, files
        self._bounds = bounds or BatchBounds()
        self._rows: Batches | None = None
        self._runner: BatchRunner | None = None
        if files.enabled:
            self._rows = Batches(files.store)
            self._runner = BatchRunner(
                manager, files, self._rows, responses, guard, self._bounds, answer_error
            )

    def start(self) -> None:
        """Go on with what a server before this one has left."""
        if self._runner is not None:
            self._runner.start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.stop()

    async def create(self, owner: str, request: BatchRequest, retry_key: str | None) -> Batch:
        """Raises InvalidArgument, NotFound for the file, Conflict for the key of another request."""
        rows = self._required()
        endpoint = endpoint_of(request.endpoint)
        if endpoint not in self._endpoints(endpoint):
            raise InvalidArgument.at(
                "endpoint",
                f"{request.endpoint!r} is not one of a batch; use "
                + ", ".join(f"/v1/{name}" for name in self._endpoints(endpoint)),
            )
        try:
            file = await self.files.get(owner, request.input_file_id)
        except NotFound:
            raise unknown_file(request.input_file_id, "input_file_id") from None
        if file.purpose != "batch":
            raise InvalidArgument.at("input_file_id", f"expected a file of purpose batch, got {file.purpose}")
        now = int(time.time())
        batch = Batch(
            id=new_id("batch_"),
            endpoint=request.endpoint,
            input_file_id=file.id,
            completion_window=request.completion_window,
            created_at=now,
            expires_at=now + int(self._bounds.window),
            metadata=request.metadata,
        )
        seconds = request.output_expires_after.seconds if request.output_expires_after else None
        digest = hashlib.sha256(msgspec.json.encode(request)).hexdigest()
        record = BatchRecord(batch=batch, output_seconds=seconds, digest=digest)
        made_or_earlier = await stored(rows.insert(owner, record, retry_key))
        self._wake()
        return made_or_earlier

    async def get(self, owner: str, id_: str) -> Batch:
        """Raises NotFound."""
        return await stored(self._required().get(owner, id_))

    async def page(self, owner: str, limit: int, after: str | None) -> BatchPage:
        """Raises InvalidArgument for an unknown `after`."""
        return await stored(self._required().page(owner, limit, after))

    async def cancel(self, owner: str, id_: str) -> Batch:
        """Raises NotFound, and Conflict for a batch that has ended."""
        batch = await stored(self._required().cancel(owner, id_))
        self._wake()
        return batch

    def _endpoints(self, endpoint: str) -> list[str]:
        """Return the endpoints of batches, with this one if a graph has it."""
        servables = [s for s in self._manager.servables if s.interface is Interface.HTTP]
        own = any(not s.endpoints or matches(endpoint, s.endpoints) for s in servables)
        return [*ENDPOINTS, *([endpoint] if own and not endpoint.startswith(NEVER) else [])]

    def _wake(self) -> None:
        if self._runner is not None:
            self._runner.wake()

    def _required(self) -> Batches:
        """Raises NotFound where no files are kept."""
        _ = self.files.store
        assert self._rows is not None, "made where there is a store"
        return self._rows

"""BatchValidator: checks the input of a batch before any line runs. One faulty line fails the batch."""

from __future__ import annotations

from dataclasses import dataclass

from ovserve.access import NOBODY, Guard, RequestContext, calling
from ovserve.api.openai.batches import BatchError, BatchErrors
from ovserve.errors import ModelNotFound, OvserveError
from ovserve.services.responses.batch_lines import check_part, endpoint_of
from ovserve.services.responses.batch_rows import Batches, BatchRecord, drop_lines, enter
from ovserve.services.responses.files import Files
from ovserve.serving.interface import matches
from ovserve.serving.manager import Manager

MAX_ERRORS = 100  # that are reported


@dataclass(frozen=True)
class BatchBounds:
    """`window`: seconds from the creation of a batch until it expires."""

    window: float = 24 * 3600.0
    requests: int = 50_000
    line_bytes: int = 32 << 20


class BatchValidator:
    def __init__(
        self, manager: Manager, files: Files, rows: Batches, guard: Guard, bounds: BatchBounds
    ) -> None:
        self._manager, self._files, self._rows = manager, files, rows
        self._guard, self._bounds = guard, bounds

    async def validate(self, number: int, owner: str, record: BatchRecord) -> BatchRecord:
        """Check the input from its start, also after a restart; the batch is in progress then, or failed."""
        batch = record.batch
        endpoint = endpoint_of(batch.endpoint)
        await self._rows.clear_lines(number)
        errors: list[BatchError] = []
        total = start = count = error_count = 0
        models: dict[str, int] = {}
        path = self._files.path(batch.input_file_id)
        size = path.stat().st_size if path.exists() else 0
        while start < size and batch.status == "validating":
            part = await self._manager.bodies.run(
                True, check_part, str(path), start, count, endpoint, self._bounds.line_bytes
            )
            twice = await self._rows.add_lines(number, part.lines) if not error_count else []
            faults = part.errors + [
                BatchError(
                    code="duplicate_custom_id",
                    message=f"custom_id: line {earlier} has {line.custom_id!r} too",
                    line=line.line,
                    param="custom_id",
                )
                for line, earlier in twice
            ]
            new_models = {name: line for name, line in part.models.items() if name not in models}
            faults += self._check_models(owner, endpoint, new_models)
            models |= new_models
            error_count += len(faults)
            errors += faults[: MAX_ERRORS - len(errors)]
            total += len(part.lines) + len(part.errors)
            start, count = part.end, part.last
            if total > self._bounds.requests:
                message = f"the file has more than {self._bounds.requests} requests"
                errors.insert(0, BatchError(code="too_many_tasks", message=message))
                break
        if not total:
            errors.append(BatchError(code="empty_file", message="the file has no requests"))
        if error_count > len(errors):
            message = f"{error_count - len(errors)} more lines are wrong"
            errors.append(BatchError(code="too_many_errors", message=message))

        def end(record: BatchRecord) -> None:
            if record.batch.status != "validating":
                return  # it was cancelled meanwhile
            if errors:
                record.batch.errors = BatchErrors(sorted(errors, key=lambda error: error.line or 0))
                enter(record, "failed")
                return
            record.batch.request_counts.total = total
            record.batch.model = next(iter(models))
            enter(record, "in_progress")

        also = (lambda db: drop_lines(db, number)) if errors else (lambda db: None)
        return await self._rows.change(number, end, also)

    def _check_models(self, owner: str, endpoint: str, models: dict[str, int]) -> list[BatchError]:
        errors: list[BatchError] = []
        call = RequestContext(NOBODY)
        with calling(call):
            for name, line in models.items():
                try:
                    call.caller = self._guard.caller_named(owner)
                    servable = self._manager.get(name)
                    if not servable.endpoints or matches(endpoint, servable.endpoints):
                        continue
                    code, message = "invalid_request", f"{name!r} does not serve /v1/{endpoint}"
                except ModelNotFound as error:
                    code, message = "model_not_found", error.message
                except OvserveError:
                    continue  # the model loads or the key has expired: each line will report it
                message = f"body.model: {message}"
                errors.append(BatchError(code=code, message=message, line=line, param="body.model"))
        return errors

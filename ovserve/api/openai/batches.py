"""OpenAI's Files and Batches: the objects, the request bodies, and the operations for docs/api.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ovserve.api.openai.operation import Metadata, Operation, doc

Purpose = Literal["batch"]
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
LIVING = ("validating", "in_progress", "finalizing", "cancelling")
ExpirySeconds = Annotated[int, Meta(ge=3600, le=2_592_000)]


class ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Annotated[Literal["created_at"], doc("the only one there is")]
    seconds: Annotated[ExpirySeconds, doc("3,600 to 2,592,000 after it")]


class FileUpload(msgspec.Struct, kw_only=True):
    """The fields of the form."""

    file: Annotated[str, doc("the file, as a part of the form; its name")]
    purpose: Annotated[Purpose, doc("batch")]
    expires_after: Annotated[
        ExpiresAfter | None, doc("as expires_after[anchor] and expires_after[seconds]")
    ] = None


class File(msgspec.Struct, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"


class FileDeleted(msgspec.Struct):
    id: str
    object: str = "file"
    deleted: bool = True


class FilePage(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchError(msgspec.Struct, kw_only=True):
    code: str
    message: str
    line: int | None = None  # of the input file, from 1
    param: str | None = None


class BatchErrors(msgspec.Struct):
    data: list[BatchError]
    object: str = "list"


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class InputDetails(msgspec.Struct):
    cached_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    input_tokens: int = 0
    input_tokens_details: InputDetails = msgspec.field(default_factory=InputDetails)
    output_tokens: int = 0
    output_tokens_details: OutputDetails = msgspec.field(default_factory=OutputDetails)
    total_tokens: int = 0


class Batch(msgspec.Struct, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None  # of the first line
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    usage: BatchUsage = msgspec.field(default_factory=BatchUsage)
    metadata: dict[str, str] | None = None


class BatchPage(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchRequest(msgspec.Struct, kw_only=True):
    input_file_id: Annotated[str, doc("an uploaded file of purpose batch: a request per line")]
    endpoint: Annotated[str, doc("the path of all requests, such as /v1/chat/completions")]
    completion_window: Annotated[
        Literal["24h"], doc("24h; the server's --batch_window_seconds is what holds")
    ]
    metadata: Annotated[Metadata | None, doc("up to 16 pairs of text, kept with the batch")] = None
    output_expires_after: Annotated[
        ExpiresAfter | None, doc("when the files with the results expire, after they were written")
    ] = None


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of an input file."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: dict[str, msgspec.Raw]


class LineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    code: str
    message: str


class LineResult(msgspec.Struct, kw_only=True):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None


PAGE = {"limit": "items of a page", "after": "the id of the item that ends the page before"}
_BATCH: dict[str, Any] = {
    "input_file_id": "file-abc", "endpoint": "/v1/chat/completions", "completion_window": "24h",
}  # fmt: skip
OPERATIONS = (
    Operation(
        "POST",
        "/v3/files",
        "Upload a file for a batch. The body is a form with a file.",
        answer=File,
        request=FileUpload,
        example={"file": "batch.jsonl", "purpose": "batch"},
        form=True,
        of_models=False,
    ),
    Operation(
        "GET",
        "/v3/files",
        "The files of this key, newest first.",
        answer=FilePage,
        query={**PAGE, "purpose": "batch or batch_output", "order": "desc, the newest first, or asc"},
    ),
    Operation("GET", "/v3/files/{id}", "A file's name, size and times.", answer=File),
    Operation("GET", "/v3/files/{id}/content", "The bytes of a file, also in ranges."),
    Operation("DELETE", "/v3/files/{id}", "Delete a file.", answer=FileDeleted),
    Operation(
        "POST",
        "/v3/batches",
        "Answer each line of a file with requests, below live requests.",
        answer=Batch,
        request=BatchRequest,
        example=_BATCH,
        of_models=False,
    ),
    Operation(
        "GET", "/v3/batches", "The batches of this key, the newest first.", answer=BatchPage, query=PAGE
    ),
    Operation("GET", "/v3/batches/{id}", "A batch: its state, counts and files.", answer=Batch),
    Operation("POST", "/v3/batches/{id}/cancel", "End a batch; the results so far are kept.", answer=Batch),
)

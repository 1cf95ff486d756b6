"""Azure's error bodies. Used by `http/errors.py`, which has the table from kinds to statuses and codes.

A value the API knows but this model cannot take is 422 with the place and the value; what is not a request at
all, fields the API does not have, and a prompt that is too long are 400.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.azure.chat import ExtraParameter
from ovserve.api.openai.common import encode
from ovserve.errors import ContextLengthExceeded, InvalidArgument, OvserveError, UnsupportedParameter

UNPROCESSABLE_STATUS = 422
VALUE = "value"  # in the error's details

_STEP = re.compile(r"[^.\[\]]+")


class Detail(msgspec.Struct):
    loc: list[str]
    value: str


class AzureError(msgspec.Struct, kw_only=True):
    error: str
    message: str
    status: int
    code: str
    param: str | UnsetType = UNSET
    detail: Detail | UnsetType = UNSET


def refine(error: OvserveError, status: int, code: str) -> tuple[int, str]:
    """The status and code of this error, given those of its kind."""
    if isinstance(error, ExtraParameter | ContextLengthExceeded):
        return status, error.code or code
    if isinstance(error, InvalidArgument) and error.param is not None:
        unsupported = isinstance(error, UnsupportedParameter)
        return UNPROCESSABLE_STATUS, "parameter_not_supported" if unsupported else "unprocessable_content"
    return status, code


def error_body(error: OvserveError, status: int, code: str) -> bytes:
    detail: Detail | UnsetType = UNSET
    if status == UNPROCESSABLE_STATUS and error.param is not None:
        value = (error.details or {}).get(VALUE)
        text = value if isinstance(value, str) else encode(value).decode()
        detail = Detail(["body", *_STEP.findall(error.param)], text)
    return encode(
        AzureError(
            error=code,
            message=str(error),
            status=status,
            code=code,
            param=error.param if status == 400 and error.param is not None else UNSET,
            detail=detail,
        )
    )

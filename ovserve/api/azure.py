"""Azure AI Model Inference: OpenAI's chat with other routing, extra fields and other errors.

`kinds/text/resource.py` joins it with the other API styles; `http/routes/v3.py` has the paths, and
`http/errors.py` the table from kinds of errors to statuses and codes.

The root path `/chat/completions` is also OpenAI's (some clients post to the bare address); it counts as
Azure's when the request carries what only Azure's clients send: see `is_azure`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.body import decode_fields, unique_members
from ovserve.api.openai.chat import ChatCompletions, DecodedChat
from ovserve.api.openai.chat_response import ChatWriter
from ovserve.api.openai.common import encode
from ovserve.errors import ContextLengthExceeded, InvalidArgument, OvserveError, UnsupportedParameter
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest

MODES = ("pass-through", "ignore", "error")
DEFAULT_MODE = "pass-through"

# Azure's own, from its API reference; everything else is extra.
FIELDS = frozenset(
    {
        "frequency_penalty",
        "max_tokens",
        "messages",
        "model",
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "stream",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    }
)
EMBEDDINGS_FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "input_type", "user"})


class ExtraParameter(InvalidArgument):
    code = "extra_parameter"


def name_of(mode: str) -> str:
    return f"azure/chat/completions/{mode}"


class AzureChat:
    def __init__(self, mode: str) -> None:
        self.name = name_of(mode)
        self._mode = mode
        self._chat = ChatCompletions()

    def decode(self, body: bytes) -> DecodedChat:
        supported, extras = _supported(decode_fields(body), FIELDS, self._mode)
        if self._mode != "ignore":
            return self._chat.decode(body)
        unique_members(body)
        decoded = self._chat.decode(encode(supported))
        return msgspec.structs.replace(decoded, ignored=tuple(sorted([*decoded.ignored, *extras])))

    def to_request(self, decoded: DecodedChat, model: ModelContext) -> GenerateRequest:
        request = self._chat.to_request(decoded, model)
        presentation = msgspec.structs.replace(request.presentation, endpoint=self.name)
        return msgspec.structs.replace(request, presentation=presentation)

    def writer(self, request: GenerateRequest) -> ChatWriter:
        return self._chat.writer(request)


def embeddings_for(body: bytes, model: str, mode: str) -> bytes:
    """Return the body of embeddings naming `model`, with extra fields handled by the mode.

    Raises InvalidArgument for one in the mode `error`, and for a body that is not a JSON object.
    """
    unique_members(body)  # the new body shows none that occurs twice
    supported, _ = _supported(decode_fields(body), EMBEDDINGS_FIELDS, mode)
    return encode(supported | {"model": msgspec.Raw(encode(model))})


def _supported(
    fields: dict[str, msgspec.Raw], names: frozenset[str], mode: str
) -> tuple[dict[str, msgspec.Raw], list[str]]:
    """Return the fields that the mode lets through, and those that are extra. Raises ExtraParameter."""
    extras = sorted(fields.keys() - names)
    if mode == "error" and extras:
        raise ExtraParameter.at(extras[0], "not a parameter of this API, and extra-parameters is error")
    return {name: value for name, value in fields.items() if mode != "ignore" or name in names}, extras


ENDPOINTS = {endpoint.name: endpoint for endpoint in map(AzureChat, MODES)}


PROVIDER = "ovserve"


class ModelInfo(msgspec.Struct):
    model_name: str
    model_type: str
    model_provider_name: str


def info_body(name: str, *, chat: bool, embeds: bool = False) -> bytes:
    kind = "embeddings" if embeds else "chat_completion" if chat else "text_generation"
    return encode(ModelInfo(name, kind, PROVIDER))


EXTRA_PARAMETERS = "extra-parameters"
DEPLOYMENT = "azureml-model-deployment"
# At the root these are OpenAI's too; below /models, the address of Azure's own endpoint, they are not.
CHAT, EMBEDDINGS = "/chat/completions", ("/embeddings", "/images/embeddings")
SHARED = (CHAT, *EMBEDDINGS)
FOUNDRY = "/models"
INFO, FOUNDRY_INFO = "/info", FOUNDRY + "/info"  # the latter is also the path of a model called info
_INFO = re.compile(rf"(/openai)?(/v3)?(/v1)?{INFO}")
DEPLOYMENTS = "/openai/deployments"  # Azure OpenAI's: OpenAI's bodies and errors, the graph in the path
VERSION = "api-version"
OTHER_NAMES = {"drop": "ignore"}  # the current name of a mode, and the one it had before
HEADERS = ("api-key", EXTRA_PARAMETERS, DEPLOYMENT)


def may_be_azure(path: str) -> bool:
    """Return False for a path that `is_azure` rejects with any query and headers."""
    return path.startswith(FOUNDRY) or path in SHARED or _INFO.fullmatch(path) is not None


def is_azure(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> bool:
    """`headers` must find names in any case."""
    if path == FOUNDRY_INFO:
        return VERSION in query
    if _INFO.fullmatch(path) or path in map(FOUNDRY.__add__, SHARED):
        return True
    return path in SHARED and (VERSION in query or any(name in headers for name in HEADERS))


def endpoint_for(headers: Mapping[str, str]) -> str:
    """The endpoint's name for what `extra-parameters` asks. Raises InvalidArgument."""
    return name_of(mode_of(headers))


def mode_of(headers: Mapping[str, str]) -> str:
    """Apply the rule for fields that Azure's API does not have. Raises InvalidArgument."""
    header = headers.get(EXTRA_PARAMETERS, DEFAULT_MODE).strip().lower()
    mode = OTHER_NAMES.get(header, header)
    if mode not in MODES:
        modes = ", ".join((*MODES, *OTHER_NAMES))
        raise InvalidArgument(f"{EXTRA_PARAMETERS}: expected one of {modes}, got {header!r}")
    return mode


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

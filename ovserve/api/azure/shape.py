"""Recognizes Azure's requests and chooses the endpoint that answers them.

Azure's client always sends the query `api-version`; its key goes in `api-key`. Under a version prefix (/v3,
/v1) those mean nothing: that is OpenAI's address, where litellm and others also send `api-key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ovserve.api.azure.chat import DEFAULT_MODE, MODES, name_of
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument

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

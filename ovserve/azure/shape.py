"""Which requests are Azure's, and which endpoint answers them. Used by `rest/`.

Azure's client always sends the query `api-version`; its key goes in `api-key`. Under a version prefix (/v3,
/v1) those mean nothing: that is OpenAI's address, where litellm and others also send `api-key`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ovserve.azure.chat import DEFAULT_MODE, MODES, name_of
from ovserve.errors import InvalidArgument

EXTRA_PARAMETERS = "extra-parameters"
DEPLOYMENT = "azureml-model-deployment"
CHAT, INFO = "/chat/completions", "/info"
HEADERS = ("api-key", EXTRA_PARAMETERS, DEPLOYMENT)


def is_azure(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> bool:
    """`headers` must find names in any case."""
    if path == INFO:
        return True
    return path == CHAT and ("api-version" in query or any(name in headers for name in HEADERS))


def endpoint_for(headers: Mapping[str, str]) -> str:
    """The endpoint's name for what `extra-parameters` asks. Raises InvalidArgument."""
    mode = headers.get(EXTRA_PARAMETERS, DEFAULT_MODE).strip().lower()
    if mode not in MODES:
        raise InvalidArgument(f"{EXTRA_PARAMETERS}: expected one of {', '.join(MODES)}, got {mode!r}")
    return name_of(mode)

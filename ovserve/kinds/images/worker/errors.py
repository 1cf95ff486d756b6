"""The library's exceptions as errors for clients and operators."""

from __future__ import annotations

import re

from ovserve.errors import InvalidArgument, LoadError

# How the library begins the text of a failed check, and where its checks of a request's options are.
_CHECK = re.compile(r"Check '.*?' failed at (\S+?):\d+:\s*(.*)", re.DOTALL)
_OF_REQUESTS = "/image_generation/"


def refused(text: str) -> InvalidArgument:
    return InvalidArgument(text)


def of_request(error: RuntimeError) -> InvalidArgument | None:
    """Return the client's error if the library rejected an option, such as prompt_2 of a model without it."""
    match = _CHECK.search(str(error))
    if match is None or _OF_REQUESTS not in match[1]:
        return None
    return InvalidArgument(f"the model rejects the request: {sentence(error)}")


def load_error(error: RuntimeError, directory: str) -> LoadError:
    return LoadError(f"cannot be loaded: {sentence(error)}", file=directory, field="models_path")


def sentence(error: RuntimeError) -> str:
    """Return the last line of the library's text, without the places in its source."""
    match = _CHECK.search(str(error))
    text = match[2] if match is not None and match[2].strip() else str(error)
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "no reason").strip()

"""Hooks of schemathesis for scripts/api_fuzz.py: most generated requests should reach the model that is served."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Any text as the model's name would only ever test the 404."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return body | {"model": "smollm2"}
    return body


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    if (
        isinstance(path_parameters, dict)
        and "model" in path_parameters
        and len(str(path_parameters["model"])) % 2
    ):
        return path_parameters | {"model": "smollm2"}
    return path_parameters

"""The fixed sizes of a model on an NPU.

A model is compiled there for one length of prompt and one of answer, both properties of the device; the
library raises for a longer prompt and ends an answer where the room ends. Other devices have no such
properties.
"""

from __future__ import annotations

from collections.abc import Mapping

from ovserve.errors import LoadError

NPU = "NPU"
PROMPT, RESPONSE = 1024, 128  # the library's own defaults, tokens


def lengths(
    device: str, properties: Mapping[str, object], max_length: int | None
) -> tuple[int | None, int | None]:
    """Tokens of the whole context, and of the prompt alone; None: no limit. `max_length` is the model's."""
    if device != NPU:
        return max_length, None
    prompt = _length(properties, "MAX_PROMPT_LEN", PROMPT)
    room = prompt + _length(properties, "MIN_RESPONSE_LEN", RESPONSE)
    return room if max_length is None else min(room, max_length), prompt


def _length(properties: Mapping[str, object], name: str, default: int) -> int:
    value = properties.get(name, default)
    if type(value) is not int or value < 1:
        raise LoadError(f"{name}: expected a whole number of tokens, got {value!r}", field="plugin_config")
    return value

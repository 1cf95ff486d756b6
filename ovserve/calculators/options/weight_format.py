"""Are a model's weights in the form that is faster on this processor? Asked at each load.

`ovserve pull --weight-format auto` chooses the form by the processor; a disk or an image may then get to
another one.
"""

from __future__ import annotations

from pathlib import Path

from ovserve.engine.host.cpu import Processor
from ovserve.engine.model.files import pulled

_AGAIN = "pull it again with --weight-format auto"


def slower_form(directory: Path, processor: Processor) -> str:
    """Return what is slow about a model's weights and what to do, or "".

    Packed weights are reported only if they were this server's choice, not the operator's.
    """
    known = pulled(directory)
    unpacked = known.get("weight_format") == "fp16"
    if unpacked and not processor.unpacked_is_faster:
        return f"its weights are unpacked to 16 bits, which is slow on a processor without AMX; {_AGAIN}"
    if known.get("auto") is True and not unpacked and processor.unpacked_is_faster:
        return f"its weights are packed, which is slow for many streams on a processor with AMX; {_AGAIN}"
    if known.get("auto") is True and not unpacked and not known.get("form"):
        return f"query, key and value of its layers are not merged, which is slow for few streams; {_AGAIN}"
    return ""
